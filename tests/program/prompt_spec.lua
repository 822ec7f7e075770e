-- The prompt where its input is no terminal: chunks, answers, errors, start-up files.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local run, shell, write, expect_has = program.run, program.shell, program.write, program.expect_has

local function expect_run(out, err, args, input)
  local code, actual_out, actual_err = run(args, input)
  expect_equal(actual_err, err)
  expect_equal(actual_out, out)
  expect_equal(code, 0)
end

test("answers go to standard output without prompts, errors to standard error, and it goes on",
  function()
    local input = [[
1 + 1
t = {
  b = { 1, 2 },
}
t
error "mine"
lokal 5
who()
"last"
]]
    expect_run("2\n{ b = { 1, 2 } }\nt  table  1 entry\nlast\n",
      "stdin:1: mine\nstdin:1: '=' expected near '5'\n", {}, input)
    expect_run("2\n", "", { "-i" }, "1 + 1\n:q\n'not read'\n")
  end)

test("a last line without its newline is read, a chunk without its end is an error", function()
  expect_run("2\n", "", {}, "1 + 1")
  expect_run("2\n", "stdin:2: 'end' expected (to close 'for' at line 1) near '<eof>'\n", {},
    "1 + 1\nfor i = 1, 2 do\n")
  expect_run("", "", {}, "")
end)

test("a chunk reads the input behind it", function()
  expect_run("got a line\nafter\n", "", {}, "print('got ' .. io.read())\na line\n'after'\n")
end)

test("img shows a picture", function()
  local code, out, err = shell("echo 'img(torch.zeros { 3, 2, 2 })' | TERM=xterm \"$REDCO_LUA\"")
  expect_equal(err, "")
  expect_equal(out, "\27[38;2;0;0;0m\27[48;2;0;0;0m▀▀\27[0m\n")
  expect_equal(code, 0)
end)

test("os.exit ends it with its code, a script's error does not", function()
  local code, out = run({ "-i" }, "os.exit(3)\n")
  expect_equal(code, 3)
  expect_equal(out, "")
  local path = write("fails.lua", "made = 'before'\nlocal function f() error 'mine' end\nf()\n")
  local err
  code, out, err = run({ "-i", path }, "made\n")
  expect_equal(code, 0)
  expect_equal(out, "before\n")
  expect_has(err, path .. ":2: mine", "stack traceback")
end)

test("the start-up file comes before the input; its error stops nothing", function()
  local init = write("init.lua", "made = torch.ones { 2 }\nfunction twice(x) return 2 * x end\n")
  local function start(variables, input)
    return shell(("printf '%s\\n' | %s \"$REDCO_LUA\""):format(input, variables))
  end
  local code, out, err = start("REDCO_INIT=" .. init, "twice(made):tolist()")
  expect_equal(err, "")
  expect_equal(out, "{ 2, 2 }\n")
  expect_equal(code, 0)
  assert(os.execute(("mkdir -p %s/config/redco && cp %s %s/config/redco"):format(program.folder,
    init, program.folder)) == 0)
  code, out = start("XDG_CONFIG_HOME=" .. program.folder .. "/config", "twice(4)")
  expect_equal(out, "8\n")
  expect_equal(code, 0)
  write("bad.lua", "local x = nil\nx.y = 1\n")
  code, out, err = start("REDCO_INIT=" .. program.folder .. "/bad.lua", "4")
  expect_has(err, "bad.lua:2: ")
  expect_equal(out, "4\n")
  expect_equal(code, 0)
  code, out, err = start("REDCO_INIT=" .. program.folder .. "/none.lua", "4")
  expect_has(err, "none.lua")
  expect_equal(out, "4\n")
  expect_equal(code, 0)
end)

test("Ctrl-C ends the chunk, and the next one is read", function()
  local _, out, err = shell [[
mkfifo input
"$REDCO_LUA" <input >loop.out 2>loop.err &
pid=$!
exec 3>input
echo 'print "started" io.stdout:flush() while true do end' >&3
for i in $(seq 200); do grep -q started loop.out && break; sleep 0.05; done
sleep 0.2
kill -INT $pid
echo '"after"' >&3
exec 3>&-
wait $pid
echo $?
cat loop.out loop.err]]
  expect_equal(err, "")
  expect_equal(out, "0\nstarted\nafter\nstdin:1: interrupted\n")
end)

program.remove_folder()
testing.finish()
