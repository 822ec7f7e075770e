--- The text of a plan.
local report = {}

local MiB, GiB = 2 ^ 20, 2 ^ 30

local function bytes(n)
  local units = { "B", "KiB", "MiB", "GiB", "TiB" }
  local i = 1
  while n >= 1024 and i < #units do n, i = n / 1024, i + 1 end
  return (i == 1 and "%d %s" or n < 10 and "%.2f %s" or "%.1f %s"):format(n, units[i])
end

local function number_in(unit, n)
  n = n / unit
  return (n < 10 and "%.2f" or "%.1f"):format(n)
end

local function count(n)
  for _, unit in ipairs { { 1e9, "B" }, { 1e6, "M" }, { 1e3, "k" } } do
    if n >= unit[1] then return ("%.2f %s"):format(n / unit[1], unit[2]) end
  end
  return ("%d"):format(n)
end

function report.percent(share) return ("%.0f %%"):format(100 * share) end

function report.seconds(s)
  if s >= 1 then return ("%.2f s"):format(s) end
  return s >= 1e-3 and ("%.1f ms"):format(s * 1e3) or ("%.0f us"):format(s * 1e6)
end

--- The columns of memory: the kinds that each adds up.
local memory_columns = {
  { "params", "parameters", "gathered" }, { "grads", "gradients" }, { "states", "states" },
  { "acts", "activations", "temporaries" }, { "buffers", "collective buffers" },
  { "frag.", "fragmentation" }, { "reserve", "reserved" }, { "total", "total" },
}

-- The groups that send something, in the order of names.
local function groups_of(layout)
  local names = {}
  for name, kinds in pairs(layout.collectives) do
    if next(kinds) then names[#names + 1] = name end
  end
  return names
end

local function sent(layout)
  local lines = {}
  for _, group in ipairs(groups_of(layout)) do
    local kinds = {}
    for kind, traffic in pairs(layout.collectives[group]) do
      kinds[#kinds + 1] = ("%s %d, %s"):format(kind, traffic.count, bytes(traffic.bytes))
    end
    lines[#lines + 1] = ("%s: %s"):format(group, table.concat(kinds, "; "))
  end
  return lines
end

-- Columns between `zero` and `batch`. A column is shown if a layout has a value for it or, with
-- if_different, if two layouts have different values.
local optional_columns = {
  { "group", function(layout)
    return layout.zero > 0 and layout.zero_group * layout.n_expert_shards < layout.n_copies
      and layout.zero_group
  end },
  { "context", function(layout)
    return layout.n_context_shards > 1 and layout.n_context_shards
  end },
  { "experts", function(layout)
    return layout.n_expert_shards > 1 and layout.n_expert_shards
  end },
  { "stages", function(layout)
    return layout.n_pipeline_stages > 1 and layout.n_pipeline_stages
  end },
  { "chunks", function(layout)
    return layout.n_chunks_per_stage > 1 and layout.n_chunks_per_stage
  end },
  { "sp", function(layout) return layout.sequence_parallel and "yes" end },
  { "recomp", function(layout) return layout.recompute ~= "none" and layout.recompute end },
  { "dtype", function(layout) return layout.compute_dtype end, if_different = true },
}

-- Returns the optional columns that some layout has.
local function columns_of(layouts)
  local columns = {}
  for _, column in ipairs(optional_columns) do
    for _, layout in ipairs(layouts) do
      local value = column[2](layout)
      if value and not (column.if_different and value == column[2](layouts[1])) then
        columns[#columns + 1] = column
        break
      end
    end
  end
  return columns
end

local function row_of(i, layout, unit, columns)
  local cells = {
    layout.is_asked and "*" .. i or tostring(i), layout.n_copies, layout.n_model_shards,
    layout.zero,
  }
  for _, column in ipairs(columns) do cells[#cells + 1] = column[2](layout) or "-" end
  cells[#cells + 1] = layout.per_device_batch_size
  cells[#cells + 1] = layout.accumulate_grad_batches
  for _, column in ipairs(memory_columns) do
    local sum = 0
    for k = 2, #column do sum = sum + (layout.is_planned and layout.memory[column[k]] or 0) end
    cells[#cells + 1] = layout.is_planned and number_in(unit, sum) or "-"
  end
  -- If the states alone are too large, only their size is known; of an impossible layout, nothing
  -- is known.
  if not layout.is_planned and layout.states > 0 then
    cells[#cells] = ">" .. number_in(unit, layout.states)
  end
  cells[#cells + 1] = layout.is_planned and report.seconds(layout.seconds.total) or "-"
  cells[#cells + 1] = layout.is_planned and report.percent(layout.mfu) or "-"
  cells[#cells + 1] = layout.fits and "yes" or layout.states > 0 and "no" or "-"
  return cells
end

-- The rows that need the least memory, as a text; nil if none was planned.
local function least_of(layouts)
  local texts = {}
  for i, layout in ipairs(layouts) do
    if layout.is_least then
      texts[#texts + 1] = ("row %d, %s%s"):format(i, bytes(layout.memory.total),
        layout.recompute ~= "none" and " with recomputation" or "")
    end
  end
  return texts[1] and "Least memory: " .. table.concat(texts, "; ")
end

--- Returns the lines of a table whose columns end at the same places.
function report.aligned(rows)
  local widths, lines = {}, {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, #tostring(cell)) end
  end
  for _, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      cells[i] = (" "):rep(widths[i] - #tostring(cell)) .. tostring(cell)
    end
    lines[#lines + 1] = table.concat(cells, "  ")
  end
  return lines
end

--- The table of layouts.
function report.table(name, result)
  local most, columns = 0, columns_of(result.layouts)
  for _, layout in ipairs(result.layouts) do
    if layout.is_planned then most = math.max(most, layout.memory.allocated) end
  end
  local header = { "row", "dp", "mp", "zero" }
  for _, column in ipairs(columns) do header[#header + 1] = column[1] end
  for _, title in ipairs { "batch", "accum" } do header[#header + 1] = title end
  for _, column in ipairs(memory_columns) do header[#header + 1] = column[1] end
  for _, title in ipairs { "step", "MFU", "fits" } do header[#header + 1] = title end
  local unit = most < GiB and MiB or GiB
  local rows, notes = { header }, {}
  for i, layout in ipairs(result.layouts) do rows[#rows + 1] = row_of(i, layout, unit, columns) end
  local lines = report.aligned(rows)
  for i, layout in ipairs(result.layouts) do
    if layout.states == 0 then
      lines[#lines + 1] = ("row %d is not possible: %s"):format(i, layout.why)
    end
    for _, note in ipairs(layout.notes) do notes[note] = true end
  end
  table.insert(lines, 1, ("%s on %s, %s each"):format(name, result.cluster,
    bytes(result.device_memory)))
  table.insert(lines, 2, ("%s parameters, global batch %d; memory of a device in %s"):format(
    count(result.n_parameters), result.global_batch_size, unit == MiB and "MiB" or "GiB"))
  local best = result.layouts[1]
  if best.is_planned then
    local seconds, text = best.seconds, "Row 1: of %s, a device waits %s for others"
    if seconds.starting > 0.01 * seconds.total then text = text .. " and %s for its host" end
    lines[#lines + 1] = (text .. ". In a step it sends:"):format(report.seconds(seconds.total),
      report.seconds(seconds.exposed), report.seconds(seconds.starting))
    for _, line in ipairs(sent(best)) do lines[#lines + 1] = "  " .. line end
    if #sent(best) == 0 then lines[#lines + 1] = "  nothing" end
  end
  lines[#lines + 1] = least_of(result.layouts)
  if best.is_planned and best.host_memory > 0 then
    lines[#lines + 1] = ("Row 1: each device uses %s of the memory of its host")
      :format(bytes(best.host_memory))
  end
  if best.price then
    lines[#lines + 1] = ("1000 steps of row 1 cost %.4g"):format(1000 * best.price)
  end
  for _, note in ipairs(result.notes) do lines[#lines + 1] = "note: " .. note end
  for note in pairs(notes) do lines[#lines + 1] = "note: " .. note end
  return table.concat(lines, "\n") .. "\n"
end

--- Returns the text about the memory of a device in one layout, at its peak.
function report.explain(row, layout)
  if not layout.is_planned then return ("row %d: %s\n"):format(row, layout.why) end
  local lines = { ("row %d, when a device holds most:"):format(row) }
  local kinds = {}
  for kind in pairs(layout.memory) do
    if kind ~= "allocated" and kind ~= "total" then kinds[#kinds + 1] = kind end
  end
  table.sort(kinds, function(a, b)
    if layout.memory[a] ~= layout.memory[b] then return layout.memory[a] > layout.memory[b] end
    return a < b
  end)
  for _, kind in ipairs(kinds) do
    lines[#lines + 1] = ("  %-20s %s"):format(kind, bytes(layout.memory[kind]))
  end
  lines[#lines + 1] = ("  %-20s %s"):format("total", bytes(layout.memory.total))
  lines[#lines + 1] = "the largest tensors:"
  for _, tensor in ipairs(layout.largest) do
    local where = tensor.line ~= "" and " at " .. tensor.line or ""
    if tensor.is_backward then where = where .. ", in backward" end
    lines[#lines + 1] = ("  %-12s %s%s%s"):format(bytes(tensor.bytes), tensor.kind,
      tensor.operator ~= "" and ", " .. tensor.operator or "", where)
  end
  for _, line in ipairs(sent(layout)) do lines[#lines + 1] = "sends " .. line end
  return table.concat(lines, "\n") .. "\n"
end

return report
