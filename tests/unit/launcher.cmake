# dprun's parts; the whole of it is driven by tests/faults/test_dprun.sh.
foreach(name options lines report job remote link shell nodes_join rendezvous)
  set(folder launcher)
  if(name STREQUAL "rendezvous")
    set(folder runtime/base)
  endif()
  dp_test(test_${name} SOURCES ${folder}/test_${name}.c fail_allocation.c LIBS dp_launcher TIMEOUT 60)
  target_link_options(test_${name} PRIVATE
                      -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup)
endforeach()
dp_test(test_station SOURCES launcher/test_station.c LIBS dp_launcher TIMEOUT 60)
target_link_options(test_station PRIVATE -Wl,--wrap=getaddrinfo)
