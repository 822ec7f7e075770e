--- The public surface, from the registry: modules and classes with their members, and the reference
--- page of each.
local lazy = require "redco.lazy"
local redco = require "redco"
local registry = require "redco.registry"
local signature = require "redco.reference.signature"
local types = require "redco.reference.types"

lazy.load_all()

local surface = {}

--- The pages in their order: the name of each, and the modules and classes on it.
surface.pages = {
  { "redco", "redco", "Server" },
  { "Deployer", "Deployer" },
  { "Trainer", "Trainer" },
  { "Predictor", "Predictor" },
  { "optim", "redco.optim", "Optimizer", "Schedule" },
  { "nn", "redco.nn", "redco.nn.init" },
  { "distributions", "redco.distributions", "Distribution" },
  { "models", "redco.models", "Model", "Cache", "GenerationBatch" },
  { "lora", "redco.lora" },
  { "diffusion", "redco.diffusion", "Pipeline", "Component", "Scheduler" },
  { "Tokenizer", "Tokenizer", "redco.Tokenizer", "DecodeStream" },
  { "data", "redco.data", "Dataset", "ReplayBuffer" },
  { "augment", "redco.augment" },
  { "check", "redco.check", "CheckSubject" },
  { "metrics", "redco.metrics" },
  { "contrastive", "redco.contrastive" },
  { "federated", "redco.federated" },
  { "preference", "redco.preference" },
  { "privacy", "redco.privacy" },
  { "quant", "redco.quant" },
  { "rl", "redco.rl", "redco.rl.language", "Environment", "LanguageSampler" },
  { "tree", "redco.tree" },
  { "torch", "torch", "torch.autograd", "torch.backends", "torch.backends.cuda", "torch.cuda",
    "torch.fft", "torch.jit", "torch.linalg", "torch.special", "Event", "Generator",
    "ScriptModule" },
  { "Tensor", "Tensor" },
  { "help", "redco.help" },
}

local page_of = {}
for _, page in ipairs(surface.pages) do
  for i = 2, #page do page_of[page[i]] = page[1] end
end

local known = {}  -- parsed texts, by text

--- Returns the parsed text of a full name (see `signature.read`); nil if there is none.
function surface.read(full_name)
  local text = registry.text(full_name)
  if text and not known[text] then known[text] = signature.read(text) end
  return known[text or ""]
end

--- Returns the module or class of a full name: "redco.nn" for "redco.nn.linear".
function surface.owner(full_name)
  return full_name:match "^(.*)[.:][^.:]+$"
end

--- Returns the class that a constructor of the same name creates: "Trainer" for "redco.Trainer".
function surface.constructed(full_name)
  local class = full_name:match "%.(%w+)$"
  return types.classes[class] and surface.read(full_name).kind == "function" and class or nil
end

--- Returns the page that describes a full name; nil for internal names.
function surface.page(full_name)
  return page_of[surface.constructed(full_name) or full_name] or page_of[surface.owner(full_name)]
end

--- Returns whether a full name is that of a module or a class, which have members.
function surface.is_group(full_name)
  local read = surface.read(full_name)
  return read ~= nil and (read.kind == "module" or read.kind == "class")
end

--- Returns the full names of the functions and properties of a module or class, sorted.
function surface.members(group)
  local members = {}
  for _, full_name in ipairs(registry.names()) do
    if surface.owner(full_name) == group and not surface.is_group(full_name) then
      members[#members + 1] = full_name
    end
  end
  return members
end

--- Returns the constructor of a class that has its name, "redco.Trainer" for "Trainer".
function surface.constructor(class)
  for _, full_name in ipairs(registry.names()) do
    if surface.constructed(full_name) == class then return full_name end
  end
end

--- Returns the modules that scripts can reach from `redco`, by full name.
function surface.modules()
  local found = {}
  local function visit(value)
    local _, name = registry.text(value)
    if found[name] or surface.read(name).kind ~= "module" then return end
    found[name] = value
    for _, inner in pairs(value) do
      if type(inner) == "table" and registry.text(inner) then visit(inner) end
    end
  end
  visit(redco)
  return found
end

-- Removes `self` from a method, and writes `__call` as the name of its class.
local function as_called(text, full_name)
  local class = full_name:match "^(.*):"
  if not class then return text end
  return (text:gsub("%(self,? ?", "(", 1):gsub("^__call", class:lower()))
end

--- Returns the full signature of a call: "Trainer:fit({train_examples, ...})".
function surface.signature(full_name)
  local read = surface.read(full_name)
  local head = read.head:gsub(" {}$", "")
  local prefix = read.kind ~= "module" and full_name:match "^(.*[.:])[^.:]+$" or ""
  return (full_name:find ":__call$" and "" or prefix) .. as_called(head, full_name)
end

--- Returns the signature with names only, for lists of members: "fit({...})".
function surface.short(full_name)
  return as_called(signature.short(surface.read(full_name)), full_name)
end

--- Returns the first sentence of a text.
function surface.summary(read)
  local first = (read.paragraphs[1] or ""):gsub("\n", " ")
  return first:match "^(.-%.)%s" or first
end

return surface
