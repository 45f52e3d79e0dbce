# Turns the viewer's files into C arrays: cmake -D OUT=file.c -D VIEW=folder -P embed.cmake.
function(embed name)
  set(hex "")
  foreach(file ${ARGN})
    file(READ ${VIEW}/${file} part HEX)
    string(APPEND hex ${part})
  endforeach()
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n"
                       bytes "${bytes}")
  file(APPEND ${OUT} "const char ${name}[] = {\n${bytes}0};\n")
endfunction()

file(WRITE ${OUT} "/* Made from launcher/dptrace/view by embed.cmake. */\n#include \"launcher/dptrace/view.h\"\n")
embed(dp_view_page page.html)
embed(dp_view_style view.css)
embed(dp_view_script data.js draw.js view.js)
