# The recorder, its file format, and what dptrace makes of both.
dp_test(test_trace SOURCES runtime/trace/test_trace.c LIBS dp_trace)
dp_test(test_exposed SOURCES launcher/test_exposed.c LIBS dp_timeline dp_synth_lib TIMEOUT 120)
dp_test(test_device_time SOURCES launcher/test_device_time.c LIBS dp_timeline dp_trace)
foreach(name timeline skew diff damaged)
  dp_test(test_${name} SOURCES launcher/test_${name}.c LIBS dp_timeline dp_synth_lib TIMEOUT 120)
endforeach()
dp_test(test_trace_memory SOURCES runtime/trace/test_trace_memory.c LIBS dp_timeline dp_synth_lib TIMEOUT 120)
target_link_options(test_trace_memory PRIVATE
                    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup)
