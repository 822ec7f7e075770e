-- Pairs to learn summarising from: Debian's packages, described at length and in one line.
local redco = require "redco"

local o = redco.options {
  lists = "/var/lib/apt/lists",
  out = "summaries.jsonl",
}

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

local function output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read "*a"
  pipe:close()
  return text
end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\" }
local function json(text) return '"' .. text:gsub('["\\]', escapes) .. '"' end

-- The lines that follow `Description:`, each after a space, as one; a dot stands for an empty line.
local function unfolded(lines)
  return (lines:gsub("\n %.\n", "\n"):gsub("%s+", " "):match "^ ?(.-) ?$")
end

-- The descriptions, or where they are kept apart, what has them; apt itself unpacks the files.
local files = output_of(("find %s -name '*_Translation-en*' -o -name '*_Packages*'"):format(
  quoted(o.lists)))
local seen, n, out = {}, 0, assert(io.open(o.out, "w"))
for file in files:gmatch "[^\n]+" do
  local records = output_of("/usr/lib/apt/apt-helper cat-file " .. quoted(file))
  for record in (records .. "\n\n"):gmatch "(.-\n)\n+" do
    local line, rest = record:match "\nDescription: ([^\n]+)(\n .*)"
    if not line then line, rest = record:match "\nDescription%-en: ([^\n]+)(\n .*)" end
    local long = line and unfolded(rest:match "^(.-)\n[^ ]" or rest)
    if long and not seen[long] then
      seen[long], n = true, n + 1
      out:write(('{"source": %s, "target": %s}\n'):format(json(long), json(line)))
    end
  end
end
out:close()
if n == 0 then
  error(("%s has no long descriptions: run `apt-get -o Acquire::Languages=en update` as root")
    :format(o.lists), 0)
end
print(("%s: %d pairs"):format(o.out, n))
