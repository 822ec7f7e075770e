-- Zero-shot classification: a CLIP learns which caption belongs to which picture, and then names
-- pictures by captions that it has never seen.
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  data = "",  -- a JSONL file of {"image": path, "caption": text}; "": emoji in coloured light
  n_emoji = 60,
  n_places = 4,  -- pictures of each emoji in each light, at different places
  model_dir = "",  -- the folder of a CLIP or SigLIP to start from; "": a new CLIP of this shape
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42,
  n_model_shards = 1,
  zero = 0,
  n_epochs = 20,
  max_steps = 0,  -- more than 0 ends the run early
  global_batch_size = 32,  -- the loss compares all pairs of a micro-batch
  per_device_batch_size = 32,
  eval_per_device_batch_size = 120,
  compute_dtype = "float32",
  learning_rate = 0,  -- 0: 1e-3 for a new model, 1e-5 for one from a folder
  warmup_ratio = 0.05,
  weight_decay = 0.1,
  grad_norm_clip = 1.0,
  hidden_size = 96,
  num_hidden_layers = 2,
  num_attention_heads = 4,
  patch_size = 16,
  projection_dim = 64,
}
local here = redco.script_folder()

local lights = { { "white", 255, 255, 255 }, { "red", 255, 130, 130 }, { "green", 130, 255, 130 },
  { "blue", 140, 140, 255 }, { "yellow", 255, 255, 110 }, { "pink", 255, 140, 255 },
  { "turquoise", 120, 255, 255 }, { "orange", 255, 185, 90 } }

-- Examples such as {image = uint8 [3, 48, 48], caption = "taxi in red light", emoji = "taxi"}. Of
-- the 8 lights each emoji is held out in 2; in the other 6 it is seen in training.
local function emoji_in_light()
  local sheet, names, tiles = redco.data.image(here .. "../image_to_text/data/emoji.png"), {}, {}
  local all = sheet:view { 3, 38, 32, 37, 32 }:permute { 1, 3, 0, 2, 4 }:reshape { -1, 3, 32, 32 }
  for i, name in redco.data.lines(here .. "../image_to_text/data/captions.txt"):ipairs() do
    if #names < o.n_emoji and i % 3 == 0 and not name:find " " then
      names[#names + 1], tiles[#tiles + 1] = name, all[i - 1]
    end
  end
  local seen, unseen, captions = {}, {}, {}
  for k, name in ipairs(names) do
    for l, light in ipairs(lights) do
      local kind = { tile = tiles[k], emoji = name, light = torch.tensor({ light[2], light[3],
        light[4] }, { dtype = "float32" }):view { 3, 1, 1 } / 255,
        caption = ("%s in %s light"):format(name, light[1]) }
      captions[#captions + 1] = kind.caption
      local list = (k + l) % 4 == 0 and unseen or seen
      list[#list + 1] = kind
    end
  end
  local function pictures(kinds, n_places)
    return redco.data.dataset(#kinds * n_places, function(i)
      local kind, place = kinds[math.floor((i - 1) / n_places) + 1], i * 3 % 4
      local image = torch.full({ 3, 48, 48 }, 255, { dtype = "float32" })
      image:narrow(1, place % 2 * 16, 32):narrow(2, math.floor(place / 2) * 16, 32)
        :copy_(kind.tile)
      return { image = (image * kind.light):to "uint8", caption = kind.caption, emoji = kind.emoji }
    end)
  end
  return pictures(seen, o.n_places), pictures(unseen, 2), captions
end

local train, held_out, captions
if o.data == "" then
  train, held_out, captions = emoji_in_light()
else
  train, held_out = redco.data.split(redco.data.jsonl(o.data), { every = 10 })
  local is_listed = {}
  captions = {}
  for _, example in held_out:ipairs() do
    if not is_listed[example.caption] then captions[#captions + 1] = example.caption end
    is_listed[example.caption] = true
  end
end

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir,
}
-- The folder that says how images and texts are prepared.
local folder = o.model_dir ~= "" and o.model_dir or here .. "data/processor"
local process_images = redco.data.image_processor(folder)
local tokenizer = redco.Tokenizer.from_pretrained(folder)

local function new_model()
  local shape = { num_hidden_layers = o.num_hidden_layers, hidden_size = o.hidden_size,
    num_attention_heads = o.num_attention_heads, intermediate_size = 4 * o.hidden_size }
  local function part(more)
    for key, value in pairs(shape) do more[key] = value end
    return more
  end
  return redco.models.from_config({
    model_type = "clip", projection_dim = o.projection_dim,
    text_config = part { vocab_size = #tokenizer, max_position_embeddings = 16,
      bos_token_id = tokenizer.bos_token_id, eos_token_id = tokenizer.eos_token_id,
      pad_token_id = tokenizer.pad_token_id },
    vision_config = part { image_size = 48, patch_size = o.patch_size },
  }, { generator = deployer:gen_rng() })
end

local model = o.model_dir == "" and new_model() or redco.models.from_pretrained(o.model_dir)

local function texts_of(list)
  return tokenizer(list, { padding = "max_length", truncation = true,
    max_length = model.config.text_config.max_position_embeddings })
end

local function image_of(example)
  local image = example.image
  return type(image) == "string" and redco.data.image(image) or image
end

local function collate_fn(examples)
  local images, texts = {}, {}
  for i, example in ipairs(examples) do
    images[i], texts[i] = image_of(example), example.caption
  end
  local batch = texts_of(texts)
  batch.pixel_values = process_images(images)
  return batch
end

-- Classification by text: of all captions the one whose features are nearest to the picture's.
local classes = texts_of(captions)
local function pred_fn(rng, params, batch)
  local logits = model(params, { pixel_values = batch.pixel_values, input_ids = classes.input_ids,
    attention_mask = classes.attention_mask })
  return logits:argmax(-1)
end

local function output_fn(predicted)
  local texts = {}
  for i, class in ipairs(predicted:tolist()) do texts[i] = captions[class + 1] end
  return texts
end

local function accuracies(examples, texts)
  local right, right_emoji = 0, 0
  for i = 1, #examples do
    local example = examples[i]
    if texts[i] == example.caption then right = right + 1 end
    if example.emoji and texts[i]:find(example.emoji .. " in ", 1, true) == 1 then
      right_emoji = right_emoji + 1
    end
  end
  local result = { accuracy = right / #examples }
  if o.data == "" then result.emoji_accuracy = right_emoji / #examples end
  return result
end

-- For comparison: the caption of the training picture with the least squared difference.
local function nearest_captions()
  local function pixels_of(examples, first, last)
    local rows = {}
    for i = first, last do rows[#rows + 1] = examples[i].image:float():view { -1 } / 255 end
    return torch.stack(rows)
  end
  local pictures, best, texts = pixels_of(held_out, 1, #held_out), {}, {}
  for first = 1, #train, 500 do
    local others = pixels_of(train, first, math.min(first + 499, #train))
    local least, places = unpack { torch.cdist(pictures, others):min(1) }
    least, places = least:tolist(), places:tolist()
    for i = 1, #held_out do
      if not best[i] or least[i] < best[i] then
        best[i], texts[i] = least[i], train[first + places[i]].caption
      end
    end
  end
  return texts
end

local schedule = deployer:get_lr_schedule_fn {
  train_size = #train, n_epochs = o.n_epochs,
  learning_rate = o.learning_rate > 0 and o.learning_rate or o.model_dir == "" and 1e-3 or 1e-5,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  warmup_ratio = o.warmup_ratio,
}
local ckpt, info
if o.resume then ckpt, info = deployer:load_last_ckpt() end

local trainer = redco.Trainer {
  deployer = deployer,
  collate_fn = collate_fn,
  loss_fn = model.loss_fn,
  params = ckpt and ckpt.params or model.params,
  opt_state = ckpt and ckpt.opt_state,
  last_ckpt_info = info,
  compute_dtype = o.compute_dtype,
  optimizer = redco.optim.chain {
    redco.optim.clip_by_global_norm(o.grad_norm_clip),
    redco.optim.adamw { learning_rate = schedule, weight_decay = o.weight_decay },
  },
  lr_schedule_fn = schedule,
}
local predictor = trainer:get_default_predictor { pred_fn = pred_fn, output_fn = output_fn }

trainer:fit {
  train_examples = train,
  eval_examples = held_out,
  n_epochs = o.n_epochs,
  max_steps = o.max_steps,
  global_batch_size = o.global_batch_size,
  per_device_batch_size = o.per_device_batch_size,
  eval_per_device_batch_size = o.eval_per_device_batch_size,
  eval_predictor = predictor,
  save_last_ckpt = true,
  eval_metric_fn = accuracies,
}

if o.data == "" then
  local nearest = accuracies(held_out, nearest_captions())
  deployer:log_info(("By chance %.4f are right. By the nearest training picture: accuracy %.4f, "
    .. "emoji_accuracy %.4f"):format(1 / #captions, nearest.accuracy, nearest.emoji_accuracy))
end
local samples = {}
for i = 1, math.min(10, #held_out) do samples[i] = held_out[i * math.floor(#held_out / 10)] end
local texts = predictor:predict {
  examples = samples, params = trainer.params,
  per_device_batch_size = o.eval_per_device_batch_size,
}
for i, sample in ipairs(samples) do texts[i] = ("%s -> %s"):format(sample.caption, texts[i]) end
deployer:log_info(table.concat(texts, "\n"), { title = "Held-out pictures, and the model's names" })

local out = o.workdir .. "/model"
model.save_pretrained(out, { params = trainer.params })
tokenizer:save_pretrained(out)
if deployer.process_id == 0 then
  local name = "/preprocessor_config.json"
  local file = assert(io.open(out .. name, "w"))
  file:write(redco.data.read(folder .. name))
  file:close()
end
deployer:log_info("the model is in " .. out)
