-- The output of ./bootstrap, with stand-ins for the programs that it calls.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local shell, write, expect_has = program.shell, program.write, program.expect_has

local source = os.getenv "REDCO_SOURCE"
assert(shell(("mkdir -p tree/cmake bin libtorch/lib && touch libtorch/lib/libtorch_cpu.so "
  .. "tree/CMakePresets.json && cp %s/bootstrap tree && cp %s/cmake/packages.txt tree/cmake")
  :format(source, source)) == 0)

local function stand_in(name, script)
  write("bin/" .. name, "#!/bin/sh\n" .. script)
  assert(shell("chmod +x bin/" .. name) == 0)
end

stand_in("id", "echo 0")
stand_in("nproc", "echo 2")
stand_in("apt-get", 'echo "apt-get $*"; exit ${APT_CODE:-0}')
stand_in("dpkg", "true")
-- All packages are there but those in $MISSING.
stand_in("dpkg-query", [[
shift 3
for p; do
  case " $MISSING " in *" $p "*) printf '%s=not-installed ' "$p" ;; *) printf '%s=installed ' "$p" ;; esac
done]])
stand_in("cmake", [[
case "$*" in
  *--build*) echo "[1/3] Building CXX object 1"; printf "$OUTPUT"; exit ${BUILD_CODE:-0} ;;
  *)
    mkdir -p build/release && touch build/release/build.ninja
    echo "LibTorch_CPU_LIBRARY:FILEPATH=$REDCO_LIBTORCH/lib/libtorch_cpu.so" >build/release/CMakeCache.txt
    ;;
esac]])
stand_in("ctest", [[
case "$*" in
  *--print-labels*) echo "All Labels:"; for each in $LABELS; do echo "  $each"; done ;;
  *) echo "ctest $*" ;;
esac]])
stand_in("ninja", [[for i in $(seq ${FILES:-3}); do echo "[$i/3] Building CXX object $i"; done]])
-- Commands of packages that this machine may lack.
for _, name in ipairs { "g++", "ccache", "luacheck", "clang-format-14", "shellcheck",
  "codespell", "luarocks", "luajit", "pkg-config", "patchelf", "python3" } do
  stand_in(name, "true")
end

-- Returns the exit code, standard output and standard error, with the folder as FOLDER.
local function bootstrap(settings, words)
  local code, out, err = shell(("cd tree; PATH=%s/bin:$PATH REDCO_LIBTORCH=%s/libtorch %s "
    .. "./bootstrap %s"):format(program.folder, program.folder, settings, words))
  return code, out, (err:gsub(program.folder:gsub("%p", "%%%0"), "FOLDER"))
end

test("a line for each step that has work", function()
  local code, out, err = bootstrap("MISSING='libpng-dev'", "")
  expect_equal(code, 0)
  expect_equal(out, "")
  expect_equal(err, [[
bootstrap: 1 of 4: installing Debian packages: libpng-dev to compile
bootstrap: 3 of 4: compiling 3 files, about 1 min on 2 cores
bootstrap: 4 of 4: built FOLDER/tree/build/release/redco-lua
]])
  local log = program.read(program.folder .. "/tree/build/release.log")
  expect_has(log, "apt-get -y", "libpng-dev", "=== ", "[1/3] Building CXX object 1")
  code, out, err = bootstrap("FILES=0", "package")
  assert(code ~= 0 and err:find "the packages could not be made", err .. out)
end)

test("the packages of tests: which, why, and only for tests that need them", function()
  local missing = "MISSING='munge slurmd python3-venv' LABELS="
  local code, out, err = bootstrap(missing .. "unit", "test -L unit")
  expect_equal(code, 0)
  expect_equal(out, "ctest --preset release -L unit\n")
  expect_equal(err, [[
bootstrap: 3 of 4: compiling 3 files, about 1 min on 2 cores
bootstrap: 4 of 4: running the tests
]])
  -- Not the commands of the machine, if it has them.
  shell "rm -f tree/build/release.log"
  code, out, err = bootstrap(missing .. "'unit hosts lint'", "test")
  expect_equal(code, 0)
  expect_equal(out, "ctest --preset release\n")
  expect_has(err, "1 of 4: installing Debian packages: ",
    "python3-venv for the tests of the sources (linters) and of other programs")
  assert(not err:find("slurm", 1, true) or err:find("for the tests with several hosts", 1, true),
    err)
end)

test("a failure: exit code, end of the output, log; memory only if it was that", function()
  local code, _, err = bootstrap("BUILD_CODE=3 OUTPUT='oops.cpp: error: no such thing\\n'", "")
  expect_equal(code, 1)
  expect_has(err, "the build failed (exit code 3). The end of its output:",
    "    oops.cpp: error: no such thing", "all of it is in FOLDER/tree/build/release.log")
  assert(not err:find "memory", err)
  code, _, err = bootstrap("BUILD_CODE=1 OUTPUT='c++: fatal error: Killed signal\\n'", "")
  expect_equal(code, 1)
  expect_has(err, "killed for want of memory: CMAKE_BUILD_PARALLEL_LEVEL=1 ./bootstrap")
  code, _, err = bootstrap("MISSING=libpng-dev APT_CODE=100", "")
  expect_equal(code, 1)
  expect_has(err, "apt-get could not install: libpng-dev (exit code 100)", "Is there a network?")
end)

test("a wheel: its packages, the target, and a word on what it lacks", function()
  write("tree/build/release/redco_lua-1.2.3-py3-none-manylinux_2_34_x86_64.whl", "a wheel")
  local code, out, err = bootstrap("MISSING=libpng-dev", "wheel")
  expect_equal(code, 0)
  expect_equal(out, "")
  expect_has(err, "the wheel has no plug-in for several GPUs",
    "made FOLDER/tree/build/release/redco_lua-1.2.3-py3-none-manylinux_2_34_x86_64.whl")
  assert(shell "touch tree/build/release/libredco_cuda.so" == 0)
  code, out, err = bootstrap("", "wheel")
  assert(code == 0 and out == "" and not err:find("plug-in", 1, true), err)
end)

test("headers of CUDA that are fetched after a build are looked for", function()
  local unpacked = program.folder .. "/cache/libtorch-2.11.0"
  local state = "tree/build/release/CMakeCache.txt"
  local found = ("LibTorch_CPU_LIBRARY:FILEPATH=%s/torch/lib/libtorch_cpu.so\n"):format(unpacked)
  local function configures()
    local code, _, err = shell(("cd tree; unset REDCO_LIBTORCH REDCO_PRESET; PATH=%s/bin:$PATH "
      .. "REDCO_CACHE=%s/cache REDCO_CUDA=1 ./bootstrap"):format(program.folder, program.folder))
    assert(code == 0, err)
    return program.read(program.folder .. "/" .. state) ~= found
  end
  write(state, found)
  assert(shell(("mkdir -p %s/torch/lib; touch -d '3 hours ago' tree/CMakePresets.json; "
    .. "touch -d '2 hours ago' %s/cuda-headers-complete; touch -d '1 hour ago' %s")
    :format(unpacked, unpacked, state)) == 0)
  expect_equal(configures(), false)
  assert(shell(("touch %s/cuda-headers-complete"):format(unpacked)) == 0)
  expect_equal(configures(), true)
  assert(shell "rm -r cache" == 0)
end)

test("LibTorch cannot be downloaded: a full disk, no network, a folder that cannot be written",
  function()
    stand_in("pip3", 'printf "$OUTPUT"; exit 2')
    stand_in("sync", "true")
    local function fetch(settings)
      local code, out, err = shell(("cd tree; unset REDCO_LIBTORCH REDCO_PRESET; PATH=%s/bin:$PATH "
        .. "REDCO_CACHE=%s/cache REDCO_CUDA=0 %s ./bootstrap"):format(program.folder,
        program.folder, settings))
      assert(code == 1 and out == "", out)
      return (err:gsub(program.folder:gsub("%p", "%%%0"), "FOLDER"))
    end
    local err = fetch "OUTPUT='  trace\nOSError: [Errno 28] No space left on device\n'"
    expect_has(err, "FOLDER/cache is full: LibTorch needs 2 GB there", "REDCO_CACHE=")
    assert(not err:find("trace", 1, true) and not err:find("network", 1, true), err)
    err = fetch "OUTPUT='Temporary failure in name resolution\n'"
    expect_has(err, "pip could not download LibTorch (exit code 2)",
      "Temporary failure in name resolution", "Is there a network?", "REDCO_LIBTORCH=")
    assert(not err:find("full", 1, true), err)
    err = fetch "REDCO_CACHE=/proc"
    expect_has(err, "the cache folder /proc cannot be written: set REDCO_CACHE to another")
    err = fetch "REDCO_CACHE=/proc/redco"
    expect_has(err, "the cache folder /proc/redco cannot be made: set REDCO_CACHE to another")
    stand_in("uname", "[ $1 = -s ] && echo Linux || echo aarch64")
    err = fetch ""
    expect_has(err, "this is Linux on aarch64", "REDCO_LIBTORCH=")
    assert(shell "rm -r bin/uname cache" == 0)
  end)

-- In place of the build, whose program would say "built".
stand_in("built", 'echo "built $*"')

local installed = [[
case $1 in
  --version) echo "redco-lua %s" ;;
  *) echo "installed $*" ;;
esac]]

-- `bootstrap run` with a LibTorch in the cache and none of the user's.
local function run(settings)
  local code, out, err = shell(("cd tree; unset REDCO_PRESET; touch a.lua; PATH=%s/bin:$PATH "
    .. "REDCO_CACHE=%s/cache REDCO_CUDA=0 %s ./bootstrap run a.lua --seed=1"):format(
    program.folder, program.folder, settings))
  return code, out, (err:gsub(program.folder:gsub("%p", "%%%0"), "FOLDER"))
end

test("a program that is made already is run, if its version is that of the source", function()
  assert(shell("mkdir -p cache/libtorch-2.11.0/torch/lib; "
    .. "echo 'project(redco VERSION 1.2.3 LANGUAGES CXX' >tree/CMakeLists.txt") == 0)
  local wheel = "tree/redco_lua-1.2.3-py3-none-manylinux_2_34_x86_64.whl"
  stand_in("redco-lua", installed:format "1.2.3")
  local code, out, err = run ""
  expect_equal(code, 0)
  expect_equal(out, "installed a.lua --seed=1\n")
  expect_equal(err,
    "bootstrap: running the redco-lua 1.2.3 that is installed; ./bootstrap compiles this source\n")

  -- A wheel beside it, as that one is another version.
  stand_in("redco-lua", installed:format "1.2.2")
  stand_in("unzip", [[
shift 3
mkdir -p "$1/redco_lua/bin"
echo 'echo "from the wheel $*"; ls ${0%/*}/../../torch' >"$1/redco_lua/bin/redco-lua"
chmod +x "$1/redco_lua/bin/redco-lua"]])
  write(wheel, "a wheel")
  code, out, err = run ""
  expect_equal(out, "from the wheel a.lua --seed=1\nlib\n")
  expect_has(err, "3 of 4: unpacking redco_lua-1.2.3-py3-none-manylinux_2_34_x86_64.whl",
    "nothing is compiled", "4 of 4: running a.lua")
  assert(code == 0 and not err:find "compiling", err)
  code, out, err = run ""
  expect_equal(code, 0)
  expect_equal(out, "from the wheel a.lua --seed=1\nlib\n")
  expect_equal(err, "")
  stand_in("unzip", "exit 9")
  write(wheel, "another wheel")
  code, out, err = run ""
  expect_equal(code, 1)
  expect_equal(out, "")
  expect_has(err, "could not be unpacked (exit code 9)", "Is there room in FOLDER/cache?")

  -- A wheel of another version is left alone; a package is installed.
  assert(shell(("mv %s tree/redco_lua-1.2.2-py3-none-any.whl"):format(wheel)) == 0)
  write("tree/redco-lua_1.2.3_amd64.deb", "a package")
  code, out, err = run ""
  expect_equal(code, 0)
  expect_equal(out, "installed a.lua --seed=1\n")
  expect_has(err, "1 of 4: installing Debian packages: redco-lua_1.2.3_amd64.deb")
  expect_has(program.read(program.folder .. "/tree/build/release.log"),
    "--no-install-recommends " .. program.folder .. "/tree/redco-lua_1.2.3_amd64.deb")

  -- The program that was built here comes first.
  assert(shell "cp bin/built tree/build/release/redco-lua" == 0)
  code, out = run ""
  expect_equal(code, 0)
  expect_equal(out, "built a.lua --seed=1\n")
end)

program.remove_folder()
testing.finish()
