# Installs the build, moves what was installed, and builds and runs a separate project against it.
#   cmake -D BUILD=<build tree> -D SOURCE=<source tree> -D WORK=<folder> -D CXX=<compiler>
#         -D VERSION=<of the project> [-D FLAGS=<its flags>] [-D LAUNCHER=<its launcher>]
#         -P install_test.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})

# A program's machine gets no headers.
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first --component Runtime)
if(EXISTS ${WORK}/first/include OR NOT EXISTS ${WORK}/first/share/doc/redco/LICENSE)
  message(FATAL_ERROR "component Runtime installed the wrong files")
endif()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first --component Development)

if(EXISTS ${WORK}/first/bin/redco-lua AND NOT EXISTS ${WORK}/first/share/redco/stubs/redco.lua)
  message(FATAL_ERROR "the stubs for editors are not installed")
endif()

file(RENAME ${WORK}/first ${WORK}/moved)
file(GLOB_RECURSE scripts ${WORK}/moved/*.cmake ${WORK}/moved/*.pc)
foreach(script ${scripts})
  file(READ ${script} text)
  foreach(folder ${BUILD} ${SOURCE}/engine ${SOURCE}/bindings ${WORK}/first)
    string(FIND "${text}" "${folder}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${script} names ${folder}, which is not part of the installation")
    endif()
  endforeach()
endforeach()

# Whoever opens them, also a program that knows nothing of LibTorch.
file(GLOB_RECURSE binaries
  ${WORK}/moved/lib*.so ${WORK}/moved/redco.so ${WORK}/moved/bin/redco-lua
  ${WORK}/moved/redco-sandbox)
foreach(binary ${binaries})
  execute_process(COMMAND ldd ${binary} OUTPUT_VARIABLE needs COMMAND_ERROR_IS_FATAL ANY)
  if(needs MATCHES "[^\n]*not found" OR needs MATCHES "=> ${BUILD}/lib[^\n]*")
    message(FATAL_ERROR "${binary} does not find what it needs: ${CMAKE_MATCH_0}")
  endif()
endforeach()

# The program works, and so does an example.
run(${WORK}/moved/bin/redco-lua ${WORK}/moved/share/redco/examples/digits/train.lua
  --max-steps=2 --workdir=${WORK}/workdir)

# One version, in all that tells one.
function(expect_version file text)
  file(READ ${file} words)
  string(FIND "${words}" "${text}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "${file} does not have ${text}")
  endif()
endfunction()
execute_process(COMMAND ${WORK}/moved/bin/redco-lua --version OUTPUT_FILE ${WORK}/version)
expect_version(${WORK}/version "redco-lua ${VERSION}\n")
expect_version(${WORK}/moved/share/man/man1/redco-lua.1 "redco\\-lua ${VERSION}")
expect_version(${WORK}/moved/lib/pkgconfig/redco.pc "Version: ${VERSION}\n")
expect_version(${WORK}/moved/lib/cmake/redco/redcoConfigVersion.cmake
  "set(PACKAGE_VERSION \"${VERSION}\")")
expect_version(${WORK}/moved/include/redco/version.h "REDCO_VERSION \"${VERSION}\"")
expect_version(${SOURCE}/CHANGELOG.md "\n## [${VERSION}]")

# redco::engine by pkg-config, with nothing but what it prints.
find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG)
  set(ENV{PKG_CONFIG_PATH} ${WORK}/moved/lib/pkgconfig)
  foreach(name redco redco-lua)
    execute_process(COMMAND ${PKG_CONFIG} --cflags --libs ${name}
      OUTPUT_VARIABLE ${name}_flags COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(${name}_flags UNIX_COMMAND "${${name}_flags}")
  endforeach()
  run(${LAUNCHER} ${CXX} ${FLAGS} ${CMAKE_CURRENT_LIST_DIR}/consumer/main.cpp
    -o ${WORK}/by_pkg_config ${redco_flags})
  run(${WORK}/by_pkg_config)
  if(NOT "-lredco_lua" IN_LIST redco-lua_flags OR NOT "-lredco" IN_LIST redco-lua_flags)
    message(FATAL_ERROR "pkg-config redco-lua gives ${redco-lua_flags}")
  endif()
else()
  message(STATUS "no pkg-config: redco.pc was not tried")
endif()

# redco::engine by a project of its own, redco::lua by the example.
function(build_against_it name source)
  run(${CMAKE_COMMAND} -G Ninja -S ${source} -B ${WORK}/${name}
    -DCMAKE_PREFIX_PATH=${WORK}/moved -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${FLAGS}
    -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
  run(${CMAKE_COMMAND} --build ${WORK}/${name})
endfunction()

build_against_it(consumer ${CMAKE_CURRENT_LIST_DIR}/consumer)
run(${WORK}/consumer/engine_consumer)
build_against_it(cpp_embed ${SOURCE}/examples/cpp_embed)
run(${CMAKE_CTEST_COMMAND} --test-dir ${WORK}/cpp_embed --output-on-failure)

# What docs/cpp.md shows: its programs print what it says, and two processes what one does.
file(MAKE_DIRECTORY ${WORK}/page)
run(awk -v FOLDER=${WORK}/page -f ${CMAKE_CURRENT_LIST_DIR}/blocks.awk ${SOURCE}/docs/cpp.md)
build_against_it(page_build ${WORK}/page)
file(READ ${SOURCE}/docs/cpp.md page)
set(programs script)
if(NOT FLAGS)  # the sanitizers need system calls that a sandbox forbids
  list(APPEND programs untrusted)
endif()
foreach(program ${programs})
  execute_process(COMMAND ${WORK}/page_build/${program}
    OUTPUT_VARIABLE shown COMMAND_ERROR_IS_FATAL ANY)
  string(FIND "${page}" "```\n${shown}```" position)
  if(shown STREQUAL "" OR position EQUAL -1)
    message(FATAL_ERROR "${program}.cpp of docs/cpp.md prints ${shown}")
  endif()
endforeach()
execute_process(COMMAND ${WORK}/page_build/train OUTPUT_VARIABLE alone COMMAND_ERROR_IS_FATAL ANY)
string(RANDOM LENGTH 4 ALPHABET 123456789 port)
set(ENV{REDCO_N_PROCESSES} 2)
set(ENV{REDCO_HOST0_ADDRESS} 127.0.0.1)
set(ENV{REDCO_HOST0_PORT} 1${port})
execute_process(
  COMMAND sh -c "REDCO_PROCESS_ID=1 \"$0\" & REDCO_PROCESS_ID=0 \"$0\" && wait $!" ${WORK}/page_build/train
  OUTPUT_VARIABLE both COMMAND_ERROR_IS_FATAL ANY)
if(NOT alone MATCHES "^w = [0-9.]+, b = [0-9.]+\n$" OR NOT both STREQUAL alone)
  message(FATAL_ERROR "train.cpp of docs/cpp.md prints ${alone}, and in two processes ${both}")
endif()
unset(ENV{REDCO_N_PROCESSES})

find_program(LUAJIT luajit)
if(LUAJIT AND NOT FLAGS)  # luajit itself has no sanitizers
  file(GLOB_RECURSE module ${WORK}/moved/redco.so)
  cmake_path(REPLACE_FILENAME module "?.so")
  run(${CMAKE_COMMAND} -E env LUA_CPATH=${module}
    ${LUAJIT} -e "assert(require('redco').torch.ones({ 2 }):sum():item() == 2)")
endif()
if(EXISTS ${WORK}/moved/bin/redco-lua)
  run(${WORK}/moved/bin/redco-lua --version)
endif()
