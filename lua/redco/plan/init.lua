--- `redco-lua plan`: how a script's training step runs on a cluster.
local native = require "redco.native"
local report = require "redco.plan.report"

local plan = {}

--- From now on this thread's script is planned where it begins to train. `options`: cluster,
--- n_devices, max_model_shards, margin, timeout, n_layouts; see Trainer:plan.
function plan.start(options)
  -- What a compiled loop leaves on the stack depends on when it was compiled, and tensors there are
  -- no garbage: without the compiler two plans are alike.
  jit.off()
  native.start_plan(options)
end

--- Prints the plan of the script `name`. `json`: a file for all of it, "-" is the output. `row`:
--- the layout whose memory is listed. Raises an error if the script did not begin to train, or no
--- layout fits.
function plan.finish(name, json, row)
  local result, text = native.finish_plan()
  if not result then
    error(("plan: %s ended without a Trainer:fit, Trainer:train or Trainer:train_step, where a "
      .. "plan begins"):format(name), 0)
  end
  if json then
    local file, message = io.stdout, nil
    if json ~= "-" then file, message = io.open(json, "wb") end
    if not file then error("plan: cannot write " .. message, 0) end
    file:write(text, "\n")
    if json ~= "-" then file:close() end
  end
  if json ~= "-" then io.write(report.table(name, result)) end
  if row then
    local n = #result.layouts
    if row > n then error(("plan: --explain %d: the last row is %d"):format(row, n), 0) end
    io.write("\n", report.explain(row, result.layouts[row]))
  end
  io.stdout:flush()  -- an error comes after it
  local why = report.nothing_fits(result)
  if why then error("plan: " .. why, 0) end
end

return plan
