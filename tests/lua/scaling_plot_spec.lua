-- The picture of `redco-lua plan --scaling`.
local scaling = require "redco.plot.scaling"
local testing = require "testing"

local test, expect_equal, refusal = testing.test, testing.expect_equal, testing.refusal

local points = {
  { devices = 1, rate = 0, mfu = 0 },
  { devices = 2, rate = 20, mfu = 0.5 },
  { devices = 4, rate = 30, mfu = 0.375 },
}

local function draw(name, chosen)
  local path = testing.folder() .. "/" .. name
  scaling(chosen or points, "GPT, weak scaling", "tokens", path)
  return testing.read(path)
end

test("a curve of the rate of a device, and one of the utilization", function()
  local svg, curves = draw "scaling.svg", {}
  for list in svg:gmatch '<polyline points="([^"]*)"' do curves[#curves + 1] = list end
  -- 376 by 180 units, from 64 and 236: 10 and 7.5 of 10, in the middle and at the right.
  expect_equal(curves[1], "252.00,56.00 440.00,56.00")
  expect_equal(curves[2], "252.00,56.00 440.00,101.00")
  expect_equal(curves[3], "712.00,56.00 900.00,101.00")
  expect_equal(#curves, 3)
  assert(svg:find(">tokens per second and device<", 1, true))
  assert(svg:find(">GPT, weak scaling<", 1, true))
  expect_equal(select(2, svg:gsub(">%-<", "")), 2)  -- nothing fits on one device
end)

test("a single point", function()
  assert(draw("one.svg", { points[2] }):find "circle")
end)

test("what cannot be drawn", function()
  expect_equal(refusal(scaling, points, "t", "tokens", "a.pdf"),
    "plan: --out must end in .svg or .png, got a.pdf")
  expect_equal(refusal(scaling, { points[1] }, "t", "tokens", testing.folder() .. "/a.svg"),
    "plan: nothing fits on any of these numbers of devices")
  assert(refusal(scaling, points, "t", "tokens", "/nowhere/a.svg")
    :find "^plan: cannot write /nowhere/a.svg")
end)

testing.finish()
