-- redco.data.image and image_processor against Pillow itself, on emoji and noise.
local redco = require "redco"
local testing = require "testing"

local data, torch, test = redco.data, redco.torch, testing.test

-- Returns a folder with what this version of Pillow makes, and the arrays in it.
local function written(version)
  local folder = ("%s/%s"):format(testing.folder(), version)
  assert(os.execute(("mkdir '%s'"):format(folder)) == 0)
  local packages = ("pillow==%s numpy==2.2.6 safetensors==0.5.3"):format(version)
  local status = os.execute(("./environment.sh images.py '%s' '%s'"):format(packages, folder))
  if status ~= 0 then os.exit(status >= 256 and status / 256 or status) end
  return folder, torch.load(folder .. "/arrays.safetensors")
end

local versions = { [11] = "11.3.0", [13] = "13.0.0" }

local function expect_same(actual, expected, what)
  local off = actual:double():sub(expected:double()):abs():max():item()
  if off ~= 0 then error(("%s differs by up to %g"):format(what, off), 2) end
end

for pillow, version in pairs(versions) do
  local folder, arrays = written(version)

  test("files, Pillow " .. version, function()
    local n = 0
    for name, pixels in pairs(arrays) do
      if name:find "^file" then
        expect_same(data.image(folder .. "/" .. name), pixels, name)
        n = n + 1
      end
    end
    assert(n == 80, n)
  end)

  test("resizing, Pillow " .. version, function()
    local n = 0
    for name, expected in pairs(arrays) do
      local i, resample, width, height = name:match "^to%.(%d+)%.(%d)%.(%d+)%.(%d+)$"
      if i then
        local resize = data.image_processor { resample = tonumber(resample), do_rescale = false,
          do_normalize = false, pillow = pillow,
          size = { width = tonumber(width), height = tonumber(height) } }
        expect_same(resize(arrays["from." .. i])[0], expected, name)
        n = n + 1
      end
    end
    assert(n >= 200, n)
  end)
end

testing.finish()
