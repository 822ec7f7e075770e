--- `redco-lua plot`: draws the metrics of a run as charts, in a file or on the terminal.
local charts = require "redco.plot.charts"
local series = require "redco.plot.series"
local terminal = require "redco.plot.terminal"

local canvases = { svg = require "redco.plot.svg", png = require "redco.plot.png" }

--- Draws the `metrics` of workdir/metrics.jsonl. An empty list selects all but the costs of steps.
--- `out` is a file whose name ends in .svg or .png. Without it, the charts go to standard output,
--- for a terminal of `width` columns, or 0 if it is not a terminal.
return function(workdir, out, width, metrics)
  local chosen = series.chosen(series.read(workdir), metrics, workdir)
  if not out then
    io.write(terminal.draw(chosen, width > 0 and width or 80, width > 0))
    return
  end
  local canvas = canvases[out:match "%.(%w+)$"]
  local file, message = io.open(out, "wb")
  if not file then error("plot: cannot write " .. message, 0) end
  file:write((charts.draw(chosen, workdir, canvas)))
  file:close()
end
