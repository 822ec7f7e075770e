--- `redco-lua plan`: how a script's training step runs on a cluster.
local draw_memory = require "redco.plot.memory"
local native = require "redco.native"
local report = require "redco.plan.report"
local scaling = require "redco.plan.scaling"

local plan = {}

--- From now on this thread's script is planned where it begins to train. `options`: cluster,
--- devices (numbers as a text), scaling, fit (which training), global_batch_size, has_timelines,
--- and those of Trainer:plan.
function plan.start(options)
  -- The stack after a compiled loop depends on when the loop was compiled, and tensors on the stack
  -- are not garbage. Without the compiler two plans are equal.
  jit.off()
  native.start_plan(options)
end

local function write(path, text)
  if path == "-" then return io.write(text, "\n") end
  local file, message = io.open(path, "wb")
  if not file then error("plan: cannot write " .. message, 0) end
  local written, reason = file:write(text, "\n")
  local closed, late = file:close()
  if not (written and closed) then
    error(("plan: cannot write %s: %s"):format(path, reason or late), 0)
  end
end

local function layout_of(result, row)
  local n = #result.layouts
  if row > n then error(("plan: --explain %d: the last row is %d"):format(row, n), 0) end
  return result.layouts[row]
end

--- Prints the plan of the script `name`. `options`: json, a file for all of it, "-" is the output;
--- row, the layout whose memory is listed; out, a picture of that memory, or of the curve over
--- several numbers of devices. Raises an error if the script did not begin to train, or no layout
--- fits.
function plan.finish(name, options)
  local result, text = native.finish_plan()
  if not result then
    error(("plan: %s ended without a Trainer:fit, Trainer:train or Trainer:train_step, where a "
      .. "plan begins"):format(name), 0)
  end
  if options.json then write(options.json, text) end
  local prints = options.json ~= "-"
  if result.points then
    if prints then io.write(scaling.table(name, result)) end
    io.stdout:flush()  -- an error comes after it
    scaling.draw(name, result, options.out)
    return
  end
  if prints then io.write(report.table(name, result)) end
  if options.row then
    io.write("\n", report.explain(options.row, layout_of(result, options.row)))
  end
  io.stdout:flush()
  if options.out then
    local row = options.row or 1
    draw_memory(layout_of(result, row), ("%s, row %d"):format(name, row), result.device_memory,
      options.out)
  end
  if result.why ~= "" then error("plan: " .. result.why, 0) end
end

--- Measures the devices and links of this run for about twice `seconds`, 10 by default, and writes
--- them to `path`, and to the file from which plans for this machine read them.
function plan.calibrate(path, seconds)
  local text, of_user = native.calibrate(seconds)
  if not text then return end
  write(path, text)
  local also = ""
  if of_user ~= "" and os.execute(("mkdir -p '%s'"):format(
    of_user:gsub("[^/]*$", ""):gsub("'", "'\\''"))) == 0 then
    write(of_user, text)
    also = ", and to " .. of_user .. " for plans of this machine"
  end
  if path ~= "-" then print("written to " .. path .. also) end
end

return plan
