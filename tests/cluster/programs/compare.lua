--- Runs a program on plain and on sharded tensors and finds out whether they differ. Every process
--- runs it alike, and comes to the same verdict.
local redco = require "redco"
local environment = require "programs.environment"
local training = require "programs.training"
local torch = require "redco.torch"
local bit = require "bit"

local Compare = {}
Compare.__index = Compare

--- What redco documents that it refuses on sharded tensors alone.
local refusals = {
  "was to be a view of a sharded one",
}

local function is_refusal(message)
  for _, text in ipairs(refusals) do if message:find(text, 1, true) then return true end end
  return false
end

--- How far values may be off where rounding explains no more, relative to the largest one.
local tolerance = { float64 = 1e-9, float32 = 1e-4, float16 = 4e-3, bfloat16 = 3e-2,
  complex128 = 1e-9, complex64 = 1e-4 }

function Compare.new(deployer)
  local n = deployer.n_processes
  return setmetatable({ deployer = deployer, mesh = deployer.mesh, n = n, n_refused = 0,
    n_suspected = 0 }, Compare)
end

-- Agreement -------------------------------------------------------------------------------------

--- What each process has for the list of numbers: a list of such lists, by process.
function Compare:everyone(numbers)
  local row = torch.tensor(numbers, { dtype = "float64" }):unsqueeze(0)
  local rows = redco.shard(row:expand { self.n, #numbers }, { dp = 0, mp = 0 })
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
  for i, line in ipairs(steps) do chunks[i] = assert(loadstring(line, "=line " .. i)) end
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
  if orders and orders.trained then
    training.reorder(env, orders.trained)
  end
  local errors = run_some(steps, env, n + 1, #steps)
  training.update(env)
  if orders and orders.evaluated and env.ua then
    local own = new_env()
    run_some(steps, own, 1, n)
    training.reorder(own, orders.evaluated)
    for key in pairs(own.p) do own.p[key] = env["u" .. key] end
    run_some(steps, own, n + 1, #steps)
    env.ue = torch.is_tensor(own.loss) and own.loss:detach() or nil
  end
  return env, errors
end

--- Runs as plain tensors did; ends at the first line that fails where they do not, or the other way
--- round. Returns the kind and the place of that, or nothing, and the message.
local function run_lines(steps, env, errors, first)
  for i, chunk in ipairs(compiled(steps)) do
    local ok, message = true, nil
    if i >= first then ok, message = pcall(setfenv(chunk, env)) end
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
  local orders, kind, line, message = training.step(self.deployer, head, env, steps,
    function(own) return run_lines(steps, own, errors, training.n_head + 1) end,
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

local function words(t) return table.concat(t.shape, ",") .. " " .. t.dtype end

local function placement_words(t)
  local place = t:placement()
  return place.dp .. " " .. place.mp
end

--- What must be alike on all processes.
local function metadata(t)
  if not torch.is_tensor(t) then return tostring(t) end
  return ("%s, strides %s, %s"):format(words(t), table.concat(t:stride(), ","), placement_words(t))
end

--- Collectives, gathers and calls of operators since the start.
local function counts()
  local counters, collectives, gathers = redco.sharding_counters(), 0, 0
  for _, kinds in pairs(counters.collectives) do
    for _, traffic in pairs(kinds) do collectives = collectives + traffic.count end
  end
  for _, gather in pairs(counters.gathers) do gathers = gathers + gather.count end
  return { collectives, gathers, counters.plans_made + counters.plans_found }
end

local function placement_of(word)
  if word == "replicate" then return nil end
  local dim, block = word:match "^shard%((%d+), block = (%d+)%)$"
  if dim then return { dim = tonumber(dim), block = tonumber(block) } end
  return tonumber(word:match "^shard%((%d+)%)$") or false
end

--- The tolerance of the least precise dtype among the tensors: the others are made of it.
local function tolerance_of(env, names)
  local largest = 0
  for _, name in ipairs(names) do
    if env[name] then largest = math.max(largest, tolerance[env[name].dtype] or 0) end
  end
  return largest
end

--- Two tensors with zeros where one is NaN and the other NaN or infinite: the order of additions
--- decides which of these an overflow becomes.
local function without_overflow(a, b)
  local both = a:isfinite():logical_or(b:isfinite()):logical_not()
  local either = both:logical_and(a:isnan():logical_or(b:isnan()))
  return a:masked_fill(either, 0), b:masked_fill(either, 0)
end

--- Equal, or near enough for rounding.
local function is_close(a, b, allowed)
  if words(a) ~= words(b) then return false end
  a, b = a:detach(), b:detach()
  if a.dtype:find "complex" then
    if a:is_conj() then a = a:resolve_conj() end
    if b:is_conj() then b = b:resolve_conj() end
    a, b = torch.view_as_real(a), torch.view_as_real(b)
  end
  -- LibTorch's equal fails for some strides.
  a, b = a:contiguous(), b:contiguous()
  if torch.equal(a, b) then return true end
  if not tolerance[a.dtype] then return false end
  a, b = without_overflow(a:double(), b:double())
  local top = b:nan_to_num(0, 0, 0):abs():max():item()
  return torch.allclose(a, b, { rtol = 0, atol = allowed * math.max(top, 1), equal_nan = true })
end

--- Whether the own part is that of the plain tensor. A sum to come is made whole for it.
local function is_part_close(actual, plain, allowed)
  if not actual:is_sharded() then return is_close(actual, plain, allowed) end
  local place = actual:placement()
  local dp, mp = placement_of(place.dp), placement_of(place.mp)
  if dp == false or mp == false then return is_close(actual:full(), plain, allowed) end
  local ok, expected = pcall(redco.shard, plain:detach(), { dp = dp, mp = mp })
  return ok and is_close(actual:detach():to_local(), expected:to_local(), allowed)
end

--- Numbers of float64 for what is compared by its size.
local function as_numbers(t)
  t = t:detach()
  if t.dtype:find "complex" then t = torch.view_as_real(t:resolve_conj()) end
  return t:double()
end

--- The largest difference; infinite where one alone is NaN or infinite.
local function off_by(a, b)
  if a:numel() == 0 then return 0 end
  a, b = without_overflow(as_numbers(a), as_numbers(b))
  local off = torch.where(a:eq(b), 0, (a - b):abs())
  return off:nan_to_num(math.huge, math.huge, math.huge):max():item()
end

--- How far the plain values may be off from what they should be: their distance from those in
--- float64, and from those of inputs that differ by a rounding. Large where a program jumps.
local function sensitivities(steps, plain, names, orders)
  local allowed = {}
  for _, name in ipairs(names) do allowed[name] = 0 end
  for seed = 0, 5 do
    local env = run_plain(steps, function()
      return seed == 0 and environment.exact() or environment.noisy(seed)
    end, orders)
    for _, name in ipairs(names) do
      local value, other = plain[name], env[name]
      if torch.is_tensor(value) and torch.is_tensor(other) then
        if table.concat(value.shape, ",") ~= table.concat(other.shape, ",") then
          allowed[name] = math.huge
        else
          allowed[name] = math.max(allowed[name], 4 * off_by(value, other))
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
    if training.is_training(lines) and verdict.line <= training.n_head then return nil, lines end
    local rest = { unpack(lines) }
    table.remove(rest, verdict.line)
    lines = rest
  end
  return nil, lines
end

--- The verdict of one run: nil, or { kind, name or line, message }.
function Compare:run_once(steps)
  local plain, errors = run_plain(steps, environment.plain)
  local is_training = training.is_training(steps)
  if is_training and not (torch.is_tensor(plain.loss)
    and plain.loss.requires_grad) then return nil end
  local env = environment.sharded(self.mesh)
  local before = counts()
  local kind, line, message, orders = self:run_sharded(steps, env, errors)
  if orders then
    plain = run_plain(steps, environment.plain, orders)
  end
  local names = results_of(plain)
  local shapes, strides = { tostring(kind), tostring(line) }, {}
  local complete = true
  for _, name in ipairs(names) do
    local value = rawget(env, name)
    if value == nil then complete = false end
    local is_tensor = torch.is_tensor(value)
    shapes[#shapes + 1] = is_tensor and words(value) .. placement_words(value) or tostring(value)
    strides[#strides + 1] = is_tensor and table.concat(value:stride(), ",") or ""
  end
  local after = counts()
  for i = 1, #after do after[i] = after[i] - before[i] end
  local kinds = { ["nil"] = 0, refused = 1, error = 2, ["no error"] = 3 }
  local rows = self:everyone { kinds[tostring(kind)], line or 0, hash(table.concat(shapes, "\n")),
    hash(table.concat(strides, "\n")), hash(table.concat(after, " ")), unpack(after) }
  for _, row in ipairs(rows) do
    for i = 1, 2 do
      if row[i] ~= rows[1][i] then
        return { kind = "apart", line = math.max(row[2], rows[1][2]), fatal = true,
          message = "some processes fail here: " .. tostring(message) }
      end
    end
  end
  if kind then
    return { kind = kind, line = line, message = message, text = steps[line] }
  end
  local unlike
  for i, what in ipairs { "placement", "metadata", "counters" } do
    for _, row in ipairs(rows) do
      if row[2 + i] ~= rows[1][2 + i] and not unlike then
        local numbers = ("collectives, gathers and calls: %s; and %s"):format(
          table.concat(rows[1], " ", 6), table.concat(row, " ", 6))
        unlike = { kind = what, message = "not the same on all processes",
          details = i < 3 and self:differing(names, env) or numbers }
      end
    end
  end
  -- Of the others the values tell more.
  if unlike and unlike.kind == "placement" then return unlike end
  if not complete then return { kind = "missing", message = "a variable has no value" } end
  -- Sizes, dtypes and placements are the same everywhere from here on.
  for _, name in ipairs(names) do
    local a, b = env[name], plain[name]
    if torch.is_tensor(a) ~= torch.is_tensor(b) then return { kind = "presence", name = name } end
    if a and words(a) ~= words(b) then
      return { kind = "shape or dtype", name = name, message = words(a) .. ", expected "
        .. words(b) }
    end
    if a and not is_training and a.requires_grad ~= b.requires_grad then
      return { kind = "requires_grad", name = name, message = tostring(a.requires_grad) }
    end
  end
  local bad, allowed = 0, tolerance_of(plain, names)
  for i, name in ipairs(names) do
    local a = env[name]
    if a and not is_part_close(a, plain[name], allowed) then bad = bad == 0 and i or bad end
  end
  local suspected = false
  for _, row in ipairs(self:everyone { bad }) do suspected = suspected or row[1] > 0 end
  if suspected then
    self.n_suspected = self.n_suspected + 1
    local verdict = self:judge(steps, env, plain, names, allowed, orders)
    if verdict then return verdict end
  end
  if unlike then return unlike end
  for _, name in ipairs(names) do
    local a, b = env[name], plain[name]
    if a and not is_training and name:find "^x" and a:numel() > 1
      and a:is_contiguous() ~= b:is_contiguous() then
      return { kind = "strides", name = name, message = ("strides %s, expected %s"):format(
        table.concat(a:stride(), ","), table.concat(b:stride(), ",")) }
    end
  end
end

--- Compares whole tensors, and takes for right what rounding explains.
function Compare:judge(steps, env, plain, names, close, orders)
  local wholes, bad = {}, {}
  for _, name in ipairs(names) do
    if env[name] then
      wholes[name] = env[name]:detach():full()
      if not is_close(wholes[name], plain[name], close) then bad[#bad + 1] = name end
    end
  end
  local allowed = #bad > 0 and sensitivities(steps, plain, bad, orders) or {}
  local index, far = 0, 0
  for i, name in ipairs(bad) do
    local off = off_by(wholes[name], plain[name])
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
