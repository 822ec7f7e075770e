--- What a script can reach, as the registry knows it: modules and classes with their members, and
--- the page of the reference that each is on.
local redco = require "redco"  -- which defines all of it
local registry = require "redco.registry"
local signature = require "redco.reference.signature"
local types = require "redco.reference.types"

local surface = {}

--- The pages in their order: the name of each, and the modules and classes on it.
surface.pages = {
  { "redco", "redco" },
  { "Deployer", "Deployer" },
  { "Trainer", "Trainer" },
  { "Predictor", "Predictor" },
  { "optim", "redco.optim", "Optimizer" },
  { "nn", "redco.nn", "redco.nn.init" },
  { "models", "redco.models", "Model", "Cache" },
  { "lora", "redco.lora" },
  { "Tokenizer", "Tokenizer", "redco.Tokenizer", "DecodeStream" },
  { "data", "redco.data", "Dataset" },
  { "metrics", "redco.metrics" },
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

local known = {}  -- what has been read, by text

--- The text of a full name, as `signature.read` gives it; nil where there is none.
function surface.read(full_name)
  local text = registry.text(full_name)
  if text and not known[text] then known[text] = signature.read(text) end
  return known[text or ""]
end

--- The module or class that a full name is in: "redco.nn" for "redco.nn.linear".
function surface.owner(full_name)
  return full_name:match "^(.*)[.:][^.:]+$"
end

--- The class that a function makes the objects of, under the same name: "Trainer" for
--- "redco.Trainer".
function surface.constructed(full_name)
  local class = full_name:match "%.(%w+)$"
  return types.classes[class] and surface.read(full_name).kind == "function" and class or nil
end

--- The page that a full name is described on; nil for what scripts do not reach.
function surface.page(full_name)
  return page_of[surface.constructed(full_name) or full_name] or page_of[surface.owner(full_name)]
end

--- Whether a text is that of a module or a class, which have members.
function surface.is_group(full_name)
  local read = surface.read(full_name)
  return read ~= nil and (read.kind == "module" or read.kind == "class")
end

--- The full names of the functions and properties in a module or class, sorted.
function surface.members(group)
  local members = {}
  for _, full_name in ipairs(registry.names()) do
    if surface.owner(full_name) == group and not surface.is_group(full_name) then
      members[#members + 1] = full_name
    end
  end
  return members
end

--- The function that makes objects of a class under its name, "redco.Trainer" for "Trainer".
function surface.constructor(class)
  for _, full_name in ipairs(registry.names()) do
    if surface.constructed(full_name) == class then return full_name end
  end
end

--- The modules that scripts reach from `redco`: a table of each by its full name.
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

-- A method without `self`, and the call of an object by the name of its class.
local function as_called(text, full_name)
  local class = full_name:match "^(.*):"
  if not class then return text end
  return (text:gsub("%(self,? ?", "(", 1):gsub("^__call", class:lower()))
end

--- How a function is called, with all that its signature has: "Trainer:fit({train_examples, ...})".
function surface.signature(full_name)
  local read = surface.read(full_name)
  local head = read.head:gsub(" {}$", "")
  local prefix = read.kind ~= "module" and full_name:match "^(.*[.:])[^.:]+$" or ""
  return (full_name:find ":__call$" and "" or prefix) .. as_called(head, full_name)
end

--- The same with names alone, as in a list of what a module or class has: "fit({...})".
function surface.short(full_name)
  return as_called(signature.short(surface.read(full_name)), full_name)
end

--- What a text says in its first sentence.
function surface.summary(read)
  local first = (read.paragraphs[1] or ""):gsub("\n", " ")
  return first:match "^(.-%.)%s" or first
end

return surface
