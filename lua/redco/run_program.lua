--- Runs programs that write to standard output.

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

local function output_of(command)
  local pipe, message = io.popen(command, "r")
  if not pipe then return " 1", message end
  local bytes = pipe:read "*a"
  pipe:close()
  return bytes
end

--- Runs the program `words[1]`, found on PATH, with the other words as its arguments. Returns the
--- bytes that it writes; or, if it fails, nil, what it says on standard error, and its exit code:
--- 127 if it is not installed.
return function(words)
  local parts = {}
  for i, word in ipairs(words) do parts[i] = quoted(word) end
  local command = "{ " .. table.concat(parts, " ") .. "; }"
  -- LuaJIT does not return the exit code of a pipe, so the command appends it.
  local bytes = output_of(command .. " 2>/dev/null; printf ' %03d' $?")
  local code = tonumber(bytes:sub(-3))
  if code == 0 then return bytes:sub(1, -5) end
  return nil, (output_of(command .. " 2>&1 >/dev/null"):gsub("%s+", " ")), code
end
