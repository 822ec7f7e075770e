# Writes OUTPUT, a C++ file that carries every Lua file under DIRECTORY as text. A file
# `redco/nn.lua` is what `require "redco.nn"` loads, `redco/init.lua` what `require "redco"` does.
file(GLOB_RECURSE files RELATIVE ${DIRECTORY} ${DIRECTORY}/redco/*.lua)
list(SORT files)
set(entries "")
set(count 0)
foreach(file ${files})
  file(READ ${DIRECTORY}/${file} text)
  string(REGEX REPLACE "(/init)?\\.lua$" "" name ${file})
  string(REPLACE "/" "." name ${name})
  string(APPEND entries "    {\"${name}\", \"${file}\", R\"lua~(${text})lua~\"},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUTPUT}.new
  "// Generated from lua/.\n#include \"host/modules.h\"\n\nnamespace redco::lua {\n"
  "const EmbeddedFile embedded_files[] = {\n${entries}};\n"
  "const int n_embedded_files = ${count};\n}  // namespace redco::lua\n")
file(COPY_FILE ${OUTPUT}.new ${OUTPUT} ONLY_IF_DIFFERENT)
