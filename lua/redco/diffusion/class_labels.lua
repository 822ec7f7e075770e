--- The condition of a DiT: the number of the class of a picture.
local fail = require "redco.fail"
local torch = require "redco.torch"

local class_labels = {}

-- Numbers by name, from the id2label of a pipeline: {"0": "tench, Tinca tinca", ...}.
local function by_name(pipeline)
  local numbers = {}
  for id, names in pairs(pipeline.config.id2label or {}) do
    for name in names:gmatch "[^,]+" do numbers[name:match "^%s*(.-)%s*$"] = tonumber(id) end
  end
  return numbers
end

local function null_class(pipeline) return pipeline.transformer.config.num_embeds_ada_norm end

--- Returns {class_labels [B]} of a number or a name, or a list of them.
function class_labels.tokenize(pipeline, classes)
  if type(classes) ~= "table" then classes = { classes } end
  local names, numbers, most = by_name(pipeline), {}, null_class(pipeline)
  for i, class in ipairs(classes) do
    numbers[i] = type(class) == "number" and class or names[class]
    if not numbers[i] then
      fail("pipeline.tokenize: '%s' is no class of the pipeline's id2label", class)
    end
    if numbers[i] % 1 ~= 0 or numbers[i] < 0 or numbers[i] > most then
      fail("pipeline.tokenize: the class %s is not a whole number from 0 to %d", numbers[i], most)
    end
  end
  if #numbers == 0 then fail "pipeline.tokenize: expected a class or a list of classes" end
  return { class_labels = torch.tensor(numbers, { dtype = "int64" }) }
end

--- The last class: a picture of no class.
function class_labels.empty(pipeline)
  return { class_labels = torch.tensor({ null_class(pipeline) }, { dtype = "int64" }) }
end

function class_labels.encode(_, _, batch)
  return batch.class_labels or fail "pipeline: batch.class_labels [batch] are missing"
end

return class_labels
