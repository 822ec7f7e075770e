--- Errors of this library's Lua files.

--- Raises an error with the text `message:format(...)`, located at the line of the script that
--- called into this library, however deep.
local function fail(message, ...)
  local level = 2
  local frame = debug.getinfo(level, "Sl")
  while frame and (frame.currentline < 1 or frame.source:find("^=redco/")) do
    level = level + 1
    frame = debug.getinfo(level, "Sl")
  end
  local place = frame and ("%s:%d: "):format(frame.short_src, frame.currentline) or ""
  error(place .. message:format(...), 0)
end

return fail
