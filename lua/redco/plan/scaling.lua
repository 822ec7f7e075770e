--- The text and the picture of a plan for several numbers of devices.
local draw = require "redco.plot.scaling"
local report = require "redco.plan.report"

local scaling = {}

local function row_of(point)
  local layout = point.layout
  if point.examples_per_second == 0 then
    return { point.n_devices, point.global_batch_size, "-", "-", "-", "-", "-", "-", "-", "-", "-" }
  end
  return {
    point.n_devices, point.global_batch_size, layout.n_copies, layout.n_model_shards, layout.zero,
    layout.per_device_batch_size, report.seconds(layout.seconds.total),
    report.percent(layout.seconds.exposed / layout.seconds.total), report.percent(layout.mfu),
    ("%.4g"):format(point.examples_per_second), report.percent(point.efficiency),
  }
end

-- The number of devices with the cheapest examples, as a text; nil if the cluster has no prices.
local function cheapest(points)
  local best, least
  for _, point in ipairs(points) do
    local price = point.layout.price and point.layout.price / point.global_batch_size
    if point.examples_per_second > 0 and price and (not least or price < least) then
      best, least = point, price
    end
  end
  return best and ("Cheapest: %d devices, %.4g for 1000 examples"):format(best.n_devices,
    1000 * least)
end

--- The table of the numbers, and where the curve bends.
function scaling.table(name, result)
  local rows = { { "devices", "global batch", "dp", "mp", "zero", "batch", "step", "waits", "MFU",
    "examples/s", "efficiency" } }
  for _, point in ipairs(result.points) do rows[#rows + 1] = row_of(point) end
  local lines = report.aligned(rows)
  table.insert(lines, 1, ("%s on devices of %s, %s scaling"):format(name, result.cluster,
    result.scaling))
  for _, point in ipairs(result.points) do
    if point.examples_per_second == 0 then
      lines[#lines + 1] = ("%d devices: %s"):format(point.n_devices, point.layout.why)
    end
  end
  local has_speed = false
  for _, point in ipairs(result.points) do
    has_speed = has_speed or point.examples_per_second > 0
  end
  if has_speed then
    lines[#lines + 1] = result.bend ~= "" and "The curve bends: " .. result.bend
      or "The speed of a device stays the same within 2 %"
  end
  lines[#lines + 1] = cheapest(result.points)
  return table.concat(lines, "\n") .. "\n"
end

--- Draws the curve in the file `out`, unless that is nil.
function scaling.draw(name, result, out)
  local points, has_one = {}, false
  for i, point in ipairs(result.points) do
    points[i] = { devices = point.n_devices, rate = point.examples_per_second,
      mfu = point.layout.mfu or 0 }
    has_one = has_one or point.examples_per_second > 0
  end
  if not has_one then error("plan: nothing fits on any of these numbers of devices", 0) end
  if out then draw(points, ("%s, %s scaling"):format(name, result.scaling), "examples", out) end
end

return scaling
