-- Examples of the reference run and print what they show; entries with arguments have one.
local diffusion = require "diffusion_cases"
local examples = require "redco.reference.examples"
local ffi = require "ffi"
local redco = require "redco"
local registry = require "redco.registry"
local shown = require "shown"
local surface = require "redco.reference.surface"
local testing = require "testing"

local test, torch = testing.test, redco.torch
local source = os.getenv "REDCO_SOURCE"

ffi.cdef [[
int chdir(const char *path);
int mkdir(const char *path, unsigned int mode);
int symlink(const char *target, const char *path);
]]

-- Examples that run only on a machine with a GPU.
local needs_gpu = {
  ["torch.cuda.Event"] = true, ["Event:elapsed_time"] = true, ["torch.cuda.mem_get_info"] = true,
  ["torch.cuda.set_device"] = true, ["torch.cuda.synchronize"] = true,
}

-- Files of the tests in the folder of an example: a folder of a tiny model, images, and so on.
local fixture = {
  ["cases/gpt2"] = "gpt2", ["cases/t5_relu_tied"] = "t5", ["cases/lora_gpt2"] = "adapters",
  ["cases/clap"] = "clap", ["cases/clip"] = "clip", ["cases/llava"] = "llava",
  ["cases/sam2"] = "sam2", ["cases/stable_diffusion"] = "stable_diffusion",
  ["lua/script_module.pt"] = "module.pt", ["lua/image_cases/rgb.png"] = "images/cat/1.png",
  ["lua/image_cases/colour.jpg"] = "images/dog/1.jpg",
  ["lua/numpy_cases/matrix.npy"] = "matrix.npy", ["lua/numpy_cases/stored.npz"] = "arrays.npz",
  ["lua/shard.tar"] = "shard.tar", ["lua/parquet_cases/images.parquet"] = "images.parquet",
  ["lua/audio_cases/pcm16.flac"] = "sound.flac",
}
local texts = {
  ["book.txt"] = "One paragraph\nof two lines.\n\nAnother one.\n",
  ["captions.txt"] = "a taxi\na blue car\na red heart\n",
  ["chats.jsonl"] = '{"messages": [{"role": "user", "content": "a taxi?"}, '
    .. '{"role": "assistant", "content": "blue"}]}\n',
  ["cities.csv"] = 'city,people\nRome,2.8\n"Washington, D.C.",0.7\n',
  ["config.toml"] = "learning_rate = 2e-3\n",
  ["config.json"] = '{"n_layer": 12, "names": ["a", "b"]}',
  ["pairs.jsonl"] = '{"prompt": "a taxi?", "chosen": "blue", "rejected": "a red heart"}\n',
  ["points.csv"] = "1,2,3\n4,5,6\n",
  ["qa.jsonl"] = '{"q": "2 + 2?", "a": 4}\n{"q": "1 + 1?", "a": 2}\n',
  ["t10k-labels-idx1-ubyte"] = "\0\0\8\1\0\0\0\3\7\2\1",
}

-- A tokenizer with a chat template, and a tiny image classifier.
fixture["cases/gpt2/tokenizer.json"] = "chat/tokenizer.json"
texts["chat/tokenizer_config.json"] = [[{"chat_template": "{% for m in messages %}<|im_start|>]]
  .. [[{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}]]
  .. [[{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"}]]
redco.models.from_config({
  model_type = "vit", hidden_size = 32, intermediate_size = 64, num_hidden_layers = 1,
  num_attention_heads = 4, image_size = 32, patch_size = 8, num_labels = 2,
}).save_pretrained(testing.folder() .. "/vit")

-- The weights of a pipeline in one file.
torch.save(diffusion.single_file(redco.diffusion.from_pretrained "../cases/stable_diffusion"),
  testing.folder() .. "/original.safetensors")

local n_folders = 0

-- Makes such a folder and enters it, without starting programs, which takes long.
local function enter_folder()
  n_folders = n_folders + 1
  local folder = ("%s/%d/"):format(testing.folder(), n_folders)
  for _, name in ipairs { "", "chat", "images", "images/cat", "images/dog" } do
    assert(ffi.C.mkdir(folder .. name, tonumber("755", 8)) == 0)
  end
  for path, name in pairs(fixture) do
    assert(ffi.C.symlink(source .. "/tests/" .. path, folder .. name) == 0)
  end
  assert(ffi.C.symlink("../vit", folder .. "vit") == 0)
  assert(ffi.C.symlink("../original.safetensors", folder .. "original.safetensors") == 0)
  for name, text in pairs(texts) do testing.write(folder .. name, text) end
  assert(ffi.C.chdir(folder) == 0)
end

-- Runs a script in such a folder and returns what it prints.
local function output_of(run)
  local lines, print_before = {}, print
  rawset(_G, "print", function(...)
    local words = {}
    for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
    lines[#lines + 1] = table.concat(words, "\t")
  end)
  enter_folder()
  torch.manual_seed(0)
  local ok, message = xpcall(run, debug.traceback)
  rawset(_G, "print", print_before)
  collectgarbage()
  if not ok then error(message, 0) end
  return table.concat(lines, "\n")
end

local wanted = {}  -- names of entries with arguments
for _, full_name in ipairs(registry.names()) do
  local read = surface.page(full_name) and surface.read(full_name)
  for _, argument in ipairs(read and read.kind == "function" and read.arguments or {}) do
    if argument.name ~= "self" then wanted[full_name] = true end
  end
end

for _, page in ipairs(surface.pages) do
  local names = {}
  for full_name in pairs(examples.of_page(page[1])) do names[#names + 1] = full_name end
  table.sort(names)
  for _, full_name in ipairs(names) do
    test("the example of " .. full_name, function()
      assert(registry.text(full_name) and surface.page(full_name) == page[1],
        "the page " .. page[1] .. " has no such entry")
      local example = examples.of(full_name)
      local _, n_lines = example.code:gsub("[^\n]+", "")
      assert(n_lines >= 1 and n_lines <= 14, "it has " .. n_lines .. " lines")
      for line in example.code:gmatch "[^\n]+" do
        assert(#line <= 78, "help has no room for the line: " .. line)
      end
      local script = examples.script(full_name)
      local run = assert(loadstring(script, "=" .. full_name))
      if needs_gpu[full_name] and not torch.cuda.is_available() then return end
      local output, text = output_of(run), shown.by(script)
      if text then shown.expect(output, text) end
      assert(text or output == "", "it does not show what it prints:\n" .. output)
    end)
  end
end

test("every entry with arguments has an example", function()
  local missing = {}
  for full_name in pairs(wanted) do
    if not examples.of(full_name) then
      missing[#missing + 1] = full_name
    end
  end
  table.sort(missing)
  assert(#missing == 0, #missing .. ":\n" .. table.concat(missing, "\n"))
end)

assert(ffi.C.chdir "/" == 0)
testing.finish()
