-- The picture of `redco-lua plan --out`: the memory of a step.
local draw = require "redco.plot.memory"
local testing = require "testing"

local test, expect_equal, refusal = testing.test, testing.expect_equal, testing.refusal

local MiB = 2 ^ 20
local layout = {
  memory = { reserved = 10 * MiB, fragmentation = 0 },
  timeline = { seconds = 0.5, moments = {
    { parameters = 20 * MiB }, { parameters = 20 * MiB, activations = 80 * MiB },
  } },
}

local function drawn(name, given, capacity)
  local path = testing.folder() .. "/" .. name
  draw(given or layout, "a step", capacity or 110 * MiB, path)
  return testing.read(path)
end

test("the kinds lie on each other, below what is available", function()
  local svg, areas = drawn "memory.svg", {}
  for points in svg:gmatch '<polygon points="([^"]*)"' do areas[#areas + 1] = points end
  expect_equal(#areas, 7)
  -- 506 by 292 units from 64 and 44; 100 MiB are the height.
  expect_equal(areas[1], "64.00,277.60 317.00,277.60 317.00,277.60 570.00,277.60 "
    .. "570.00,336.00 317.00,336.00 317.00,336.00 64.00,336.00")
  expect_equal(areas[5], "64.00,277.60 317.00,277.60 317.00,44.00 570.00,44.00 "
    .. "570.00,277.60 317.00,277.60 317.00,277.60 64.00,277.60")
  assert(svg:find(">available<", 1, true) and svg:find(">MiB<", 1, true))
  assert(svg:find(">activations<", 1, true) and not svg:find(">gradients<", 1, true))
end)

test("much more memory than is used is not shown", function()
  assert(not drawn("large.svg", nil, 1000 * MiB):find(">available<", 1, true))
end)

test("what cannot be drawn", function()
  expect_equal(refusal(draw, layout, "t", MiB, "a.pdf"),
    "plan: --out must end in .svg or .png, got a.pdf")
  expect_equal(refusal(draw, { memory = {} }, "t", MiB, "a.svg"),
    "plan: --out: no step was planned in this row")
  assert(refusal(draw, layout, "t", MiB, "/nowhere/a.svg")
    :find "^plan: cannot write /nowhere/a.svg")
end)

testing.finish()
