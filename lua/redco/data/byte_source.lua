--- The bytes of a file, read on demand, or of a string.
local native = require "redco.native"
local torch = require "redco.torch"

local source = {}

--- Returns {size, bytes(offset, count), tensor(offset, count, dtype)} of a file; offsets count
--- from 0. `kind` names the expected file in errors.
function source.of_file(path, kind)
  local file = native.byte_file(path, kind)
  return {
    size = tonumber(#file),
    bytes = function(offset, count) return file:bytes(offset, count) end,
    tensor = function(...) return file:tensor(...) end,
  }
end

--- The same of a string.
function source.of_text(text)
  return {
    size = #text,
    bytes = function(offset, count) return text:sub(offset + 1, offset + count) end,
    tensor = function(offset, count, dtype)
      return torch.frombuffer(text, { dtype = dtype, offset = offset, count = count })
    end,
  }
end

return source
