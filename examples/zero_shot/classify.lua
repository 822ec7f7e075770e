-- Which of these texts describes a picture: by the folder of a CLIP or SigLIP.
local redco = require "redco"

local o = redco.options {
  model_dir = "workdir/model",  -- what train.lua wrote, or another folder
  image = "",  -- a PNG or JPEG file
  labels = "",  -- texts, with commas between them
}

local labels = {}
for label in o.labels:gmatch "[^,]+" do labels[#labels + 1] = label:match "^%s*(.-)%s*$" end
if o.image == "" or #labels == 0 then error("--image=FILE and --labels=TEXT,TEXT are needed", 0) end

local model = redco.models.from_pretrained(o.model_dir)
local tokenizer = redco.Tokenizer.from_pretrained(o.model_dir)
local inputs = tokenizer(labels, { padding = "max_length", truncation = true,
  max_length = model.config.text_config.max_position_embeddings })
inputs.pixel_values = redco.data.image_processor(o.model_dir) { redco.data.image(o.image) }

local logits = redco.torch.no_grad(function() return model(model.params, inputs) end)[0]
-- CLIP compares the texts with each other; for SigLIP each is right or wrong alone.
local is_clip = model.config.model_type == "clip"
local probabilities = (is_clip and logits:softmax(-1) or logits:sigmoid()):tolist()
local order = {}
for i = 1, #labels do order[i] = i end
table.sort(order, function(a, b) return probabilities[a] > probabilities[b] end)
for _, i in ipairs(order) do
  print(("%5.1f %%  %s"):format(100 * probabilities[i], labels[i]))
end
