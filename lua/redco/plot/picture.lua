--- The files of pictures: SVG, or PNG that the program rsvg-convert makes of it.
local native = require "redco.native"
local run_program = require "redco.run_program"

local picture = {}

local convert = {}

function convert.svg(svg) return svg end

-- Returns a PNG file with 2 x 2 pixels for each unit; or nil, and why there is none.
function convert.png(svg)
  local path = os.tmpname()
  local png, code
  local is_written, message = native.write_file(path, svg)
  if is_written then png, message, code = run_program { "rsvg-convert", "--zoom=2", path } end
  os.remove(path)
  if png then return png end
  if code == 127 then
    message = "PNG files need the program rsvg-convert: install it (`apt-get install librsvg2-bin`)"
  end
  return nil, message .. ", or choose a name that ends in .svg"
end

--- Raises an error if the name of a picture, `out`, does not end in .svg or .png. `where` is the
--- command, for errors.
function picture.check(out, where)
  if not convert[out:match "%.(%w+)$"] then
    error(("%s: --out must end in .svg or .png, got %s"):format(where, out), 0)
  end
end

--- Writes a picture, the bytes of an SVG file, to `out`, whose name ends in .svg or .png. An
--- earlier file is replaced at once, or kept if there is an error.
function picture.write(svg, out, where)
  picture.check(out, where)
  local bytes, why = convert[out:match "%.(%w+)$"](svg)
  if not bytes then error(("%s: cannot write %s: %s"):format(where, out, why), 0) end
  local is_written, message = native.write_file(out, bytes)
  if not is_written then error(where .. ": " .. message, 0) end
end

return picture
