--- Runs this same program on scripts, for the specs of the program.
local program = {}

local function read_all(path)
  local file = assert(io.open(path, "rb"))
  local bytes = file:read "*a"
  file:close()
  return bytes
end

local function quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

--- A folder of its own for files; `program.remove_folder()` at the end.
program.folder = os.tmpname()
os.remove(program.folder)
assert(os.execute("mkdir -p " .. quoted(program.folder)) == 0)

function program.remove_folder()
  assert(os.execute("rm -r " .. quoted(program.folder)) == 0)
end

function program.write(name, text)
  local path = program.folder .. "/" .. name
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
  return path
end

program.read = read_all

program.path = assert(os.getenv "REDCO_LUA", "REDCO_LUA must name the program to be tested")

--- Runs the shell command in the folder, with `"$REDCO_LUA"` as this program; returns its exit
--- code, what it wrote on standard output and on standard error.
function program.shell(command)
  local out, err = program.folder .. "/.stdout", program.folder .. "/.stderr"
  local shell = ("cd %s; { %s\n} >%s 2>%s"):format(quoted(program.folder), command, quoted(out),
    quoted(err))
  local status = os.execute(shell)
  return status % 256 == 0 and status / 256 or 128 + status % 128, read_all(out), read_all(err)
end

--- Runs this program with the arguments and the text as its standard input.
function program.run(args, input)
  local words = {}
  for i, word in ipairs(args) do words[i] = quoted(word) end
  local from = "</dev/null"
  if input then from = "<" .. quoted(program.write(".stdin", input)) end
  return program.shell(quoted(program.path) .. " " .. table.concat(words, " ") .. " " .. from)
end

--- Runs the scripts of these paths one after another in one process of this program, because a
--- start takes longer than most scripts. They share loaded modules and what they change in the
--- engine. Returns for each {is_good, out, err}: whether it ended without an error, and what it
--- wrote.
function program.run_in_turn(paths)
  local mark, pattern, quoted_paths = "-- a script ", "(.-)%-%- a script ", {}
  for i, path in ipairs(paths) do quoted_paths[i] = quoted(path) end
  local code, out, err = program.shell(("IN_TURN_MARK=%s %s %s %s </dev/null"):format(quoted(mark),
    quoted(program.path), quoted(assert(os.getenv "REDCO_SOURCE") .. "/tests/program/in_turn.lua"),
    table.concat(quoted_paths, " -- ")))
  local found = {}
  local next_err = err:gmatch(pattern .. "\n")
  for text, ending in out:gmatch(pattern .. "(%a+)\n") do
    found[#found + 1] = { is_good = ending == "ends", out = text, err = next_err() }
  end
  if code ~= 0 or #found ~= #paths then
    error(("exit code %d after %d of %d scripts\n%s%s"):format(code, #found, #paths, out, err), 2)
  end
  return found
end

--- Fails unless the text has all of the parts.
function program.expect_has(text, ...)
  for _, part in ipairs { ... } do
    if not text:find(part, 1, true) then error(("expected %q in:\n%s"):format(part, text), 2) end
  end
end

--- The time of day, to measure with.
function program.seconds()
  local pipe = assert(io.popen "date +%s.%N")
  local now = tonumber(pipe:read "*l")
  pipe:close()
  return now
end

return program
