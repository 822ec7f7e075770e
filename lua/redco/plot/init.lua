--- `redco-lua plot`: draws the metrics of a run as charts, in a file or on the terminal.
local charts = require "redco.plot.charts"
local picture = require "redco.plot.picture"
local series = require "redco.plot.series"
local terminal = require "redco.plot.terminal"

--- Draws the `metrics` of workdir/metrics.jsonl. An empty list selects all but the costs of steps.
--- `out` is a file whose name ends in .svg or .png. Without it, the charts go to standard output,
--- for a terminal of `width` columns, or 0 if it is not a terminal.
return function(workdir, out, width, metrics)
  local chosen = series.chosen(series.read(workdir), metrics, workdir)
  if not out then
    io.write(terminal.draw(chosen, width > 0 and width or 80, width > 0))
    return
  end
  picture.write(charts.draw(chosen, workdir), out, "plot")
end
