# Installs the build, moves what was installed, and builds and runs a separate project against it.
#   cmake -D BUILD=<build tree> -D SOURCE=<source tree> -D WORK=<folder> -D CXX=<compiler>
#         [-D FLAGS=<its flags>] [-D LAUNCHER=<its launcher>] -P install_test.cmake
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
file(GLOB_RECURSE scripts ${WORK}/moved/*.cmake)
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
file(GLOB_RECURSE binaries ${WORK}/moved/lib*.so ${WORK}/moved/redco.so
  ${WORK}/moved/redco-lua)
# The plug-in for GPUs is opened where there is one, and CUDA with it.
list(FILTER binaries EXCLUDE REGEX "libredco_nccl")
foreach(binary ${binaries})
  execute_process(COMMAND ldd ${binary} OUTPUT_VARIABLE needs COMMAND_ERROR_IS_FATAL ANY)
  if(needs MATCHES "[^\n]*not found" OR needs MATCHES "=> ${BUILD}/lib[^\n]*")
    message(FATAL_ERROR "${binary} does not find what it needs: ${CMAKE_MATCH_0}")
  endif()
endforeach()

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
