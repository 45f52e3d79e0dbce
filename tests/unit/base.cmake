# runtime/base, runtime/network and runtime/group: no GPU, no network but loopback, no sleeps.
foreach(name error failure log wire auth config kv_protocol door)
  dp_test(test_${name} SOURCES runtime/base/test_${name}.c LIBS dp_base TIMEOUT 30)
endforeach()
dp_test(test_topology SOURCES runtime/group/test_topology.c fail_allocation.c LIBS dp_group TIMEOUT 60)
dp_test(test_place SOURCES runtime/group/test_place.c LIBS dp_group TIMEOUT 30)
dp_test(test_bootstrap SOURCES runtime/group/test_bootstrap.c kv_server.c fail_allocation.c
        LIBS dp_threads dp_group dp_rendezvous TIMEOUT 60)
dp_test(test_inject SOURCES runtime/base/test_inject.c fail_allocation.c LIBS dp_base TIMEOUT 30)
dp_test(test_kv SOURCES runtime/base/test_kv.c kv_server.c fail_allocation.c LIBS dp_base TIMEOUT 60)
foreach(name topology bootstrap kv inject) # the nth allocation fails, for n = 1, 2, 3, ...
  target_link_options(test_${name} PRIVATE
                      -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup)
endforeach()
foreach(name starter beacon pmi core_share fabric) # how others' jobs are found; cores of a rank
  dp_test(test_${name} SOURCES runtime/group/test_${name}.c LIBS dp_group TIMEOUT 60)
endforeach()
dp_test(test_secret_file SOURCES runtime/base/test_secret_file.c LIBS dp_base)
dp_test(test_silence SOURCES runtime/network/test_silence.c LIBS dp_network)
dp_test(test_reach SOURCES runtime/network/test_reach.c LIBS dp_network TIMEOUT 60)
dp_test(test_resolve SOURCES runtime/network/test_resolve.c LIBS dp_network TIMEOUT 60)
target_link_options(test_resolve PRIVATE -Wl,--wrap=getaddrinfo)
