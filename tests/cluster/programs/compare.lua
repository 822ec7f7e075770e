--- Runs a program on plain and on sharded tensors and finds out whether they differ. Every process
--- runs it alike, and comes to the same verdict.
local redco = require "redco"
local closeness = require "programs.closeness"
local environment = require "programs.environment"
local training = require "programs.training"
local torch = require "redco.torch"
local bit = require "bit"

local Compare = {}
Compare.__index = Compare

--- Refusals that are documented: on sharded tensors, where a block is computed again, which
--- a plain run does not do, and in the stages of a pipeline.
local refusals = {
  "a gradient is computed inside of the loss_fn",
  "a value is read that only stage",
  "the shape of its result depends on values that only stage",
  " returns depends on values: keep the shape",  -- where the stages are decided
  "writes values of stage",
  "loss_fn writes to a parameter that is trained",
  " chunks needs one",  -- of a program with few lines
  "is read inside of a transform such as vmap",
  "computes on tensors of two stages of a pipeline, and backward cannot run it again",
  "reaches memory outside of the elements of this sharded tensor",
  "modified in place since the function read it",
  "exists outside of the function, which modifies it in place",
}

local function is_refusal(message)
  for _, text in ipairs(refusals) do if message:find(text, 1, true) then return true end end
  return false
end

--- `renew` makes the Deployer that follows a refused line, if it must be another one.
function Compare.new(deployer, renew)
  local n = deployer.n_processes
  return setmetatable({ deployer = deployer, mesh = deployer.mesh, n = n, n_refused = 0,
    n_suspected = 0, renew = renew }, Compare)
end

-- Agreement -------------------------------------------------------------------------------------

--- Returns the list of numbers of each process, that of process 0 first.
function Compare:everyone(numbers)
  local row = torch.tensor(numbers, { dtype = "float64" }):unsqueeze(0)
  local rows = redco.shard(row:expand { self.n, #numbers },
    { dp = 0, mp = 0, dp_replicate = 0, ep = 0, cp = 0, pp = 0 })
  return rows:full():tolist()
end

local function hash(text)
  local h = 5381
  for i = 1, #text do h = bit.bxor(bit.tobit(h * 33), text:byte(i)) end
  return h
end

-- Running ---------------------------------------------------------------------------------------

local function compiled(steps)
  local chunks = {}
  for i, line in ipairs(steps) do chunks[i] = assert(loadstring(line, "=program")) end
  return chunks
end

--- Runs lines from `first` to `last`; one that fails is left out. Returns the messages by line.
local function run_some(steps, env, first, last)
  local errors = {}
  for i, chunk in ipairs(compiled(steps)) do
    if i >= first and i <= last then
      local ok, message = pcall(setfenv(chunk, env))
      if not ok then errors[i] = tostring(message) end
    end
  end
  return errors
end

--- Runs a program in a new environment; returns that and the messages by line. `orders` are those
--- of a training step's batch.
local function run_plain(steps, new_env, orders)
  local env = new_env()
  if not training.is_training(steps) then return env, run_some(steps, env, 1, #steps) end
  local n = training.n_head
  run_some(steps, env, 1, n)
  training.compute(env)
  if orders and orders.trained then
    training.reorder(env, orders.trained)
  end
  local errors = run_some(steps, env, n + 1, #steps)
  training.update(env)
  if orders and orders.evaluated and env.ua then
    local own = new_env()
    run_some(steps, own, 1, n)
    training.reorder(own, orders.evaluated)
    for key in pairs(own.p) do own.p[key] = env["u" .. key]:clone() end
    training.compute(own)
    run_some(steps, own, n + 1, #steps)
    env.ue = torch.is_tensor(own.loss) and own.loss:detach() or nil
  end
  return env, errors
end

--- Runs as plain tensors did; ends at the first line that fails where they do not, or the other way
--- round. Returns the kind and the place of that, or nothing, and the message. With `in_blocks`
--- each line is a block, which a stage of a pipeline may begin with.
local function run_lines(steps, env, errors, first, in_blocks)
  for i, chunk in ipairs(compiled(steps)) do
    local ok, message = true, nil
    if i >= first and in_blocks then
      ok, message = pcall(redco.nn.block, setfenv(chunk, env))
    elseif i >= first then
      ok, message = pcall(setfenv(chunk, env))
    end
    if i >= first and ok and errors[i] then return "no error", i, errors[i] end
    if not ok and not errors[i] then
      return is_refusal(tostring(message)) and "refused" or "error", i, tostring(message)
    end
  end
end

--- The same for a whole program; the last result is the orders of a training step's batch.
function Compare:run_sharded(steps, env, errors)
  if not training.is_training(steps) then return run_lines(steps, env, errors, 1) end
  local head = environment.plain()
  run_some(steps, head, 1, training.n_head)
  local orders, kind, line, message = training.step(self.deployer, head, env, steps, errors,
    function(own)
      return run_lines(steps, own, errors, training.n_head + 1, self.mesh.pp > 1)
    end,
    function() return environment.sharded(self.mesh) end)
  -- Backward and the step have no line that could be left out.
  if kind == "step" then kind = is_refusal(message) and "refused" or "error" end
  return kind, line, message, orders
end

-- Comparing -------------------------------------------------------------------------------------

--- The tensors that the plain run has, by name, in the order of their names.
local function results_of(env)
  local names = {}
  for name, value in pairs(env) do
    if torch.is_tensor(value) or value == false then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

--- Returns facts that must be alike on all processes.
local function metadata(t)
  if not torch.is_tensor(t) then return tostring(t) end
  return ("%s, strides %s, %s"):format(closeness.words(t), table.concat(t:stride(), ","),
    closeness.placement_words(t))
end

--- Collectives, gathers and calls of operators since the start.
local function counts()
  local counters, collectives, gathers = redco.sharding_counters(), 0, 0
  for _, kinds in pairs(counters.collectives) do
    for _, traffic in pairs(kinds) do collectives = collectives + traffic.count end
  end
  for _, move in ipairs(counters.moves) do
    if move.is_gather then gathers = gathers + move.calls end
  end
  return { collectives, gathers, counters.plans_made + counters.plans_found }
end

--- The place in the list of the first name whose parts are not near those of the plain tensor, or
--- 0. Of sums to come, or of the others, which need no other process.
local function first_off(names, env, plain, allowed, of_sums)
  local first = 0
  for i, name in ipairs(names) do
    local a = rawget(env, name)
    if torch.is_tensor(a) and closeness.is_sum(a) == of_sums and not closeness.is_part_close(a,
      plain[name], allowed)
      and first == 0 then first = i end
  end
  return first
end

--- How far the plain values may be off from what they should be: their distance from those in
--- float64, and from those of inputs that differ by a rounding. Large where a program jumps.
local function sensitivities(steps, plain, names, orders)
  local allowed = {}
  for _, name in ipairs(names) do allowed[name] = 0 end
  for seed = 0, 10 do
    local env = run_plain(steps, function()
      return seed == 0 and environment.exact() or environment.noisy(seed)
    end, orders)
    for _, name in ipairs(names) do
      local value, other = plain[name], env[name]
      if torch.is_tensor(value) and torch.is_tensor(other) then
        if table.concat(value.shape, ",") ~= table.concat(other.shape, ",") then
          allowed[name] = math.huge
        else
          allowed[name] = math.max(allowed[name], 4 * closeness.off_by(value, other))
        end
      end
    end
  end
  return allowed
end

--- The program's verdict, without the lines that sharded tensors refuse; and the lines that ran.
function Compare:run(lines)
  for _ = 1, 4 do
    local verdict = self:run_once(lines)
    if not verdict or verdict.kind ~= "refused" then return verdict, lines end
    self.n_refused = self.n_refused + 1
    if self.renew then
      self.deployer = self.renew()
      self.mesh = self.deployer.mesh
    end
    if training.is_training(lines) and verdict.line <= training.n_head then return nil, lines end
    local rest = { unpack(lines) }
    table.remove(rest, verdict.line)
    lines = rest
  end
  return nil, lines
end

--- Numbers that must be alike on all processes; `alike` names the kind of the first difference.
local alike = { "apart", "apart", "placement", "metadata", "counters" }

local function fingerprint(kind, line, names, env, calls)
  local kinds = { refused = 1, error = 2, ["no error"] = 3 }
  local shapes, strides = {}, {}
  for i, name in ipairs(names) do
    local value = rawget(env, name)
    local is_tensor = torch.is_tensor(value)
    shapes[i] = is_tensor and closeness.words(value) .. closeness.placement_words(value)
      or tostring(value)
    strides[i] = is_tensor and table.concat(value:stride(), ",") or ""
  end
  return { kinds[kind] or 0, line or 0, hash(table.concat(shapes, "\n")),
    hash(table.concat(strides, "\n")), hash(table.concat(calls, " ")) }
end

--- The verdict where processes differ: nil, or the first thing that does.
function Compare:unlike(rows, names, env)
  for i, kind in ipairs(alike) do
    for _, row in ipairs(rows) do
      if row[i] ~= rows[1][i] then
        local calls = ("collectives, gathers and calls: %s; and %s"):format(
          table.concat(rows[1], " ", #alike + 2), table.concat(row, " ", #alike + 2))
        return { kind = kind, fatal = kind == "apart" or nil, line = math.max(row[2], rows[1][2]),
          message = "not the same on all processes",
          details = kind == "counters" and calls or kind ~= "apart" and self:differing(names, env)
            or nil }
      end
    end
  end
end

--- The verdict by what all processes know of the tensors: nil, or the first thing unlike plain.
local function metadata_verdict(names, env, plain)
  for _, name in ipairs(names) do
    local a, b = rawget(env, name), plain[name]
    if a == nil or torch.is_tensor(a) ~= torch.is_tensor(b) then
      return { kind = "presence", name = name, message = tostring(a) }
    end
    if a and closeness.words(a) ~= closeness.words(b) then
      return { kind = "shape or dtype", name = name,
        message = closeness.words(a) .. ", expected " .. closeness.words(b) }
    end
  end
end

--- The same by what a training step does not keep.
local function details_verdict(names, env, plain)
  for _, name in ipairs(names) do
    local a, b = env[name], plain[name]
    if a and a.requires_grad ~= b.requires_grad then
      return { kind = "requires_grad", name = name, message = tostring(a.requires_grad) }
    end
    if a and name:find "^x" and a:numel() > 1 and a:is_contiguous() ~= b:is_contiguous() then
      return { kind = "strides", name = name, message = ("strides %s, expected %s"):format(
        table.concat(a:stride(), ","), table.concat(b:stride(), ",")) }
    end
  end
end

--- Whether some process has a number.
local function any_has(rows, column)
  for _, row in ipairs(rows) do if row[column] > 0 then return true end end
  return false
end

--- The verdict of one run: nil, or { kind, name or line, message }.
function Compare:run_once(steps)
  local plain, errors = run_plain(steps, environment.plain)
  local is_training = training.is_training(steps)
  if is_training and not (torch.is_tensor(plain.loss) and plain.loss.requires_grad) then
    return nil
  end
  local env, before = environment.sharded(self.mesh), counts()
  local kind, line, message, orders = self:run_sharded(steps, env, errors)
  if orders then plain = run_plain(steps, environment.plain, orders) end
  local calls = counts()
  for i = 1, #calls do calls[i] = calls[i] - before[i] end
  local names = results_of(plain)
  local allowed = closeness.tolerance_of(plain, names)
  -- Stages of a pipeline make different calls.
  local numbers = fingerprint(kind, line, names, env, self.mesh.pp == 1 and calls or {})
  numbers[#numbers + 1] = kind and 0 or first_off(names, env, plain, allowed, false)
  for _, count in ipairs(calls) do numbers[#numbers + 1] = count end
  local rows = self:everyone(numbers)
  local unlike = self:unlike(rows, names, env)
  if unlike and unlike.fatal then
    unlike.message = "some processes fail here: " .. tostring(message)
    return unlike
  end
  if kind then return { kind = kind, line = line, message = message, text = steps[line] } end
  -- Of the others the values tell more.
  if unlike and unlike.kind == "placement" then return unlike end
  local verdict = metadata_verdict(names, env, plain)
  if verdict then
    local depends_on_rounding = verdict.kind == "shape or dtype"
      and sensitivities(steps, plain, { verdict.name }, orders)[verdict.name] == math.huge
    return not depends_on_rounding and verdict or nil
  end
  local has_sums = false
  for _, name in ipairs(names) do has_sums = has_sums or env[name]
    and closeness.is_sum(env[name]) end
  local suspected = any_has(rows, #alike + 1)
  if has_sums and not suspected then
    suspected = any_has(self:everyone { first_off(names, env, plain, allowed, true) }, 1)
  end
  if suspected then
    self.n_suspected = self.n_suspected + 1
    verdict = self:judge(steps, env, plain, names, allowed, orders)
    if verdict then return verdict end
  end
  if unlike then return unlike end
  return not is_training and details_verdict(names, env, plain) or nil
end

--- Compares whole tensors, and takes for right what rounding explains.
function Compare:judge(steps, env, plain, names, close, orders)
  local wholes, bad = {}, {}
  -- A result computed from an infinity may be NaN if that infinity may be NaN.
  local has_other_overflow = false
  for _, name in ipairs(names) do
    if env[name] then
      wholes[name] = env[name]:detach():full()
      has_other_overflow = has_other_overflow
        or closeness.has_other_overflow(wholes[name], plain[name])
      if not closeness.is_close(wholes[name], plain[name], close) then bad[#bad + 1] = name end
    end
  end
  local allowed = #bad > 0 and sensitivities(steps, plain, bad, orders) or {}
  local index, far = 0, 0
  for i, name in ipairs(bad) do
    local off = closeness.off_by(wholes[name], plain[name], has_other_overflow)
    if index == 0 and off > allowed[name] then index, far = i, off end
  end
  local number, found = {}, nil
  for i, name in ipairs(names) do number[name] = i end
  for process, row in ipairs(self:everyone { index > 0 and number[bad[index]] or 0, far }) do
    if row[1] > 0 and not found then
      local name = names[row[1]]
      local kind = name:find "^x" and "value" or name:find "^[hs]" and "second gradient"
        or name:find "^u" and "parameter" or name == "loss" and "loss" or "gradient"
      found = { kind = kind, name = name, actual = wholes[name], expected = plain[name],
        message = ("off by %.3g on process %d, %s"):format(row[2], process - 1,
          metadata(env[name])) }
    end
  end
  return found
end

--- Which tensors' metadata differ among the processes, with the strides on each.
function Compare:differing(names, env)
  local hashes = {}
  for i, name in ipairs(names) do hashes[i] = hash(metadata(rawget(env, name))) end
  if #hashes == 0 then return "" end
  local rows, text = self:everyone(hashes), {}
  for i, name in ipairs(names) do
    local same = true
    for _, row in ipairs(rows) do same = same and row[i] == rows[1][i] end
    if not same then
      local strides = { unpack(torch.is_tensor(env[name]) and env[name]:stride() or {}) }
      while #strides < 7 do strides[#strides + 1] = -1 end
      local list = {}
      for process, row in ipairs(self:everyone(strides)) do
        list[process] = table.concat(row, ","):gsub(",%-1", "")
      end
      text[#text + 1] = name .. ": " .. metadata(env[name]) .. "; strides on each process: "
        .. table.concat(list, " and ")
    end
  end
  return table.concat(text, "\n")
end

return Compare
