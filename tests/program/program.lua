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
