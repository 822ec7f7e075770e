-- `redco-lua plot` draws what a run has logged.
local data = require "redco.data"
local draw = require "redco.plot"
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local expect_has = program.expect_has

local function plot(...)
  return program.run { "plot", program.folder, ... }
end

local function expect_drawn(...)
  local code, out, err = plot(...)
  if code ~= 0 then error(("exit code %d: %s"):format(code, err), 2) end
  return out
end

--- Returns what the command writes for a folder, metrics and a file, in this process: most of its
--- time is the program's start.
local function drawn(folder, metrics, out)
  local path = program.folder .. "/drawn"
  io.output(path)
  local ok, message = pcall(draw, folder, out, 0, metrics or {})
  io.output():close()
  io.output(io.stdout)
  if not ok then error(message, 0) end
  return program.read(path)
end

local function log(lines)
  program.write("metrics.jsonl", table.concat(lines, "\n"))
end

-- Steps 0 to 4, of which 2 and 3 were done twice; the last line is torn.
log {
  '{"step":0,"loss":4,"lr":0.5,"mfu":0.25}', '{"step":1,"loss":3,"lr":0.5,"mfu":0.25}',
  '{"step":2,"loss":9,"lr":0.5,"mfu":0.25}', '{"step":3,"loss":null,"lr":0.5,"mfu":0.25}',
  '{"step":2,"kind":"eval","loss":2.5}',
  '{"step":2,"loss":2,"lr":0.5,"mfu":0.25}', '{"step":3,"loss":1,"lr":0.5,"mfu":0.25}',
  '{"step":4,"kind":"eval","loss":1.5}',
  '{"step":4,"loss":0,"lr":0.5,"mfu":0.25}', '{"step":5,"lo',
}

test("as text, where there is no terminal", function()
  expect_equal(expect_drawn("--metric", "loss", "--metric", "eval_loss"), [[
loss: 0 at step 4
        4 +*****
          |     ********
          |             *********
          |                      ********
          |                              *************
          |                                           *************
          |                                                        ********
        0 +                                                                *****
           0                               step                                4

eval_loss: 1.5 at step 4
      2.5 +*****
          |     **********
          |               **********
          |                         *********
          |                                  **********
          |                                            **********
          |                                                      **********
      1.5 +                                                                *****
           2                               step                                4
]])
end)

test("all but what a step costs, unless it is asked for", function()
  local out = drawn(program.folder)
  expect_has(out, "loss: 0 at step 4", "eval_loss: 1.5", "lr: 0.5 at step 4")
  assert(not out:find("mfu", 1, true))
  expect_has(drawn(program.folder, { "mfu" }), "mfu: 0.25 at step 4")
end)

test("in dots, on a terminal of that width", function()
  local code, out = program.shell(("script -qec 'stty cols 40; exec %s plot . --metric=loss' "
    .. "/dev/null </dev/null"):format(program.path))
  if code == 127 then return print "no program `script`: skipped" end
  expect_equal(code, 0)
  expect_equal((out:gsub("\r", "")), [[
loss: 0 at step 4
        4 ┤⠑⠢⢄⡀
          │   ⠈⠒⠤⣀
          │       ⠑⠢⢄⡀
          │          ⠈⠑⠢⢄⡀
          │              ⠈⠒⠤⣀
          │                  ⠉⠒⠤⣀
          │                      ⠉⠒⠤⡀
        0 ┤                         ⠈⠑⠢⢄
           0           step            4
]])
end)

test("as SVG, with a point for each step", function()
  local path = program.folder .. "/charts.svg"
  expect_equal(expect_drawn("--out", path), "")
  local svg = program.read(path)
  local names, points = {}, {}
  for name in svg:gmatch 'text%-anchor="start"[^>]*>([^<]*)<' do names[#names + 1] = name end
  expect_equal(table.concat(names, " "), "loss lr")
  expect_has(svg, ">eval 1.5<", ">train 0<", ">" .. program.folder .. "<")
  expect_equal(select(2, svg:gsub(">step<", "")), 2)
  for list in svg:gmatch '<polyline points="([^"]*)"' do points[#points + 1] = list end
  -- Of 300 by 166 units, 64 from the left and 64 from the top. The evaluations are in the panel of
  -- the loss.
  expect_equal(points[1], "64.00,64.00 139.00,105.50 214.00,147.00 289.00,188.50 364.00,230.00")
  expect_equal(points[2], "214.00,126.25 364.00,167.75")
  local depth = 0
  for close, rest in svg:gmatch "<(/?)([^>]*)>" do
    if close == "/" then depth = depth - 1 elseif rest:sub(-1) ~= "/" then depth = depth + 1 end
  end
  expect_equal(depth, 0)
end)

local has_converter = os.execute "command -v rsvg-convert >/dev/null 2>&1" == 0

test("as PNG", function()
  if not has_converter then return print "  no program rsvg-convert: skipped" end
  local path = program.folder .. "/charts.png"
  drawn(program.folder, { "loss" }, path)
  local pixels = data.image(path)
  expect_equal(table.concat(pixels.shape, " "), "3 540 760")
  local function colour(x, y)
    local p = pixels:select(2, x):select(1, y)
    return ("%d %d %d"):format(p[0]:item(), p[1]:item(), p[2]:item())
  end
  expect_equal(colour(0, 0), "255 255 255")
  expect_equal(colour(2 * 214, 2 * 147), "31 111 180")  -- the point of step 2
  expect_equal(colour(2 * 214, 2 * 90), "255 255 255")
  -- The name of the metric is dark, and smooth: some of its pixels are grey.
  local name = pixels:narrow(1, 2 * 40, 2 * 14):narrow(2, 2 * 64, 2 * 30):select(0, 0)
  assert(name:min():item() == 40, name:min():item())
  local n_grey = (name:gt(60) * name:lt(235)):sum():item()
  assert(n_grey > 20 and n_grey < 400, n_grey)
end)

test("PNG needs rsvg-convert, and without it keeps an earlier file", function()
  local path = program.write("old.png", "an earlier picture")
  local code, out, err = program.shell(("PATH=/nowhere '%s' plot . --out=old.png </dev/null")
    :format(program.path))
  expect_equal(code, 1)
  expect_equal(out, "")
  expect_equal(err, "redco-lua: plot: cannot write old.png: PNG files need the program "
    .. "rsvg-convert: install it (`apt-get install librsvg2-bin`), or choose a name that ends in "
    .. ".svg\n")
  expect_equal(program.read(path), "an earlier picture")
end)

test("a folder whose name is no UTF-8, with signs of XML and of the shell", function()
  local name = "r\233sum\233 \195\169\169 \240\159 <&'\"$(x)`"
  local folder = program.folder .. "/" .. name
  local quoted = "'" .. folder:gsub("'", "'\\''") .. "'"
  assert(os.execute(("mkdir %s && cp '%s/metrics.jsonl' %s"):format(quoted, program.folder,
    quoted)) == 0)
  local code, _, err = program.run { "plot", folder, "--out", folder .. "/a.svg" }
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(program.read(folder .. "/a.svg"), "/r?sum? \195\169? ? &lt;&amp;'\"$(x)`</text>")
  if not has_converter then return end
  drawn(folder, nil, folder .. "/a.png")
  expect_equal(data.image(folder .. "/a.png").shape[1], 3)
end)

-- The curves of a picture as lists of points {x, y}, in the order in which they are drawn.
local function curves_of(lines)
  log(lines)
  local path, curves = program.folder .. "/long.svg", {}
  drawn(program.folder, { "loss" }, path)
  for list in program.read(path):gmatch '<polyline points="([^"]*)"' do
    local points = {}
    for x, y in list:gmatch "([%d.]+),([%d.]+)" do
      points[#points + 1] = { tonumber(x), tonumber(y) }
    end
    curves[#curves + 1] = points
  end
  return curves
end

test("a long run keeps its peaks, below the mean of neighbours", function()
  local lines = {}
  for step = 1, 20000 do
    lines[step] = ('{"step":%d,"loss":%d}'):format(step, step == 7777 and 1000 or step % 2)
  end
  local raw, means = unpack(curves_of(lines))
  assert(#raw <= 1000 and #means <= 1000, #raw)
  -- The axis is that of the run, 0 to 1: the peak is cut off.
  local n_high = 0
  for _, point in ipairs(raw) do
    assert(point[2] >= 64 and point[2] <= 230, point[2])
    if point[2] == 64 then n_high = n_high + 1 end
  end
  assert(n_high > 100, n_high)
  local off = 0
  for _, point in ipairs(means) do
    if math.abs(point[2] - 147) > 3 then off = off + 1 end
  end
  assert(off < 30, off)
end)

test("the axis is that of the run, not of its first steps", function()
  local lines = {}
  for step = 1, 200 do
    lines[step] = ('{"step":%d,"loss":%g}'):format(step, step <= 10 and 100 or 2 - step / 200)
  end
  local raw, means = unpack(curves_of(lines))
  -- The first ten are above the picture, and the frame hides them.
  expect_equal(#raw, 190)
  assert(raw[2][2] > 64 and raw[2][2] < 69, raw[2][2])
  assert(math.abs(means[#means][2] - 230) < 5, means[#means][2])
  local svg = program.read(program.folder .. "/long.svg")
  local id = svg:match 'points="[^"]*"[^>]* clip%-path="url%(#([^)]*)%)"'
  expect_has(svg, ('<clipPath id="%s"><rect y="63.00" width="100%%" height="168.00"/>'):format(id))
  -- In the terminal no line runs along the frame.
  local text = drawn(program.folder, { "loss" })
  assert(not text:find "%+%*%*%*", text)
end)

test("first steps within twice the range of the others are shown", function()
  local lines = {}
  for step = 1, 200 do
    lines[step] = ('{"step":%d,"loss":%g}'):format(step,
      step <= 10 and 3.2 - step / 10 or 2.2 - step / 100)
  end
  local raw = unpack(curves_of(lines))
  expect_equal(#raw, 200)
  expect_equal(raw[1][2], 64)
  for i = 2, 200 do assert(raw[i][2] > raw[i - 1][2], i) end
end)

test("errors tell what to do", function()
  log { "no JSON" }
  local code, _, err = plot()
  expect_equal(code, 1)
  expect_equal(err, ("redco-lua: plot: %s/metrics.jsonl has no metrics yet\n")
    :format(program.folder))
  log { '{"step":1,"loss":1}' }
  expect_has(drawn(program.folder), "loss: 1 at step 1")
  code, _, err = plot("--out", "charts.gif")
  expect_equal(code, 2)
  expect_has(err, ".svg or .png", "charts.gif")
  expect_equal((program.run { "plot" }), 2)
  _, _, err = program.run { "plot", "nowhere" }
  expect_equal(err, "redco-lua: plot: cannot open nowhere/metrics.jsonl: No such file or "
    .. "directory: WORKDIR is the work folder of a run, the workdir of its Deployer\n")
  program.shell "mkdir pipe; mkfifo pipe/metrics.jsonl"
  local nowhere = program.folder .. "/nowhere"
  for _, case in ipairs {
    { { program.folder, { "los" } }, "no metric 'los'; there are: loss" },
    { { program.folder, nil, nowhere .. "/charts.svg" }, "plot: cannot write",
      "/nowhere/charts.svg" },
    { { nowhere }, "/nowhere/metrics.jsonl", "WORKDIR is the work folder of a run" },
    { { program.folder .. "/pipe" },
      "/pipe/metrics.jsonl: a pipe or device, expected a text file" },
  } do
    testing.expect_error(function() drawn(unpack(case[1], 1, 3)) end, unpack(case, 2))
  end
end)

program.remove_folder()
testing.finish()
