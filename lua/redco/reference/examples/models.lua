--- Model.set_sentence_pooling
local bert = redco.models.from_config({
  model_type = "bert", vocab_size = 100, hidden_size = 16,
  intermediate_size = 32, num_hidden_layers = 1, num_attention_heads = 2,
}, { task = "features" })
bert.set_sentence_pooling {
  pooling = "mean", normalize = true, prompts = { query = "query: " },
}
local ids = torch.tensor { { 5, 6, 7 }, { 8, 9, 3 } }
print(bert(bert.params, { input_ids = ids }).shape)  --> torch.Size([2, 16])
bert.save_pretrained "workdir/sentences"

--- redco.models.detections
-- One image, two queries, and the classes cat, dog and none.
local logits = torch.tensor { { { 9, 0, 0 }, { 0, 0, 9 } } }
local boxes = torch.tensor { { { 0.5, 0.5, 0.5, 1 }, { 0, 0, 1, 1 } } }
local found = redco.models.detections(logits, boxes,
  { sizes = { { 10, 20 } } })
print(found[1].labels, found[1].boxes)
--> tensor([0])  tensor([[ 5.,  0., 15., 10.]])

--- redco.models.from_config
local model = redco.models.from_config({
  model_type = "llama", vocab_size = 1000, hidden_size = 64,
  intermediate_size = 128, num_hidden_layers = 2, num_attention_heads = 4,
}, { generator = redco.Rng(42) })
local inputs = { input_ids = torch.tensor { { 5, 6, 7 } } }
local logits = model(model.params, inputs)
print(logits.shape)  --> torch.Size([1, 3, 1000])

--- redco.models.from_encoder_decoder_pretrained
local model = redco.models.from_encoder_decoder_pretrained("vit", "gpt2")
local inputs = { pixel_values = torch.rand { 2, 3, 32, 32 } }
local captions = model.generate(model.params, inputs, { max_new_tokens = 5 })
print(captions.shape)  --> torch.Size([2, 6])

--- redco.models.from_pretrained
local model = redco.models.from_pretrained("gpt2", { dtype = "bfloat16" })
print(model.config.model_type, redco.tree.count(model.params))
--> gpt2  124848
print(model.params["transformer.wte.weight"].shape)
--> torch.Size([768, 48])

--- redco.models.generate (after Model)
local options = { max_new_tokens = 4, num_beams = 3 }
local sequences, scores =
  redco.models.generate(model, model.params, inputs, options)
print(sequences.shape, scores.shape)
--> torch.Size([2, 9])  torch.Size([2])

--- redco.models.new_cache (after Model)
local cache = redco.models.new_cache()
model(model.params, inputs, { cache = cache })
print(cache.length)  --> 5
local next_tokens = { input_ids = torch.tensor { { 30 }, { 31 } } }
local logits = model(model.params, next_tokens, { cache = cache })
print(logits.shape, cache.length)  --> torch.Size([2, 1, 768])  6

--- redco.models.processor
local model = redco.models.from_pretrained "llava"
local process = redco.models.processor "llava"
local image = redco.data.image "images/cat/1.png"
local batch = process("<image>a red heart", { image })
print(batch.input_ids.shape, batch.pixel_values.shape)
--> torch.Size([1, 14])  torch.Size([1, 3, 12, 12])
local options = { max_new_tokens = 4 }
print(model.generate(model.params, batch, options).shape)
--> torch.Size([1, 18])

--- Model
local tokenizer = redco.Tokenizer.from_pretrained "gpt2"
local model = redco.models.from_pretrained "gpt2"
tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "left"
local inputs = tokenizer({ "a red heart", "hello" }, { padding = true })
print(inputs.input_ids.shape)  --> torch.Size([2, 5])

--- Model.decoder_input_ids
local model = redco.models.from_pretrained "t5"
local labels = torch.tensor { { 7, 8, 1 }, { 9, 1, -100 } }  -- 1 ends a text
print(model.decoder_input_ids(labels))
--> tensor([[0, 7, 8],
-->         [0, 9, 1]])

--- Model.encode
local tokenizer = redco.Tokenizer.from_pretrained "t5"
local model = redco.models.from_pretrained "t5"
local inputs = tokenizer { "hello" }
inputs.encoder_hidden_states = model.encode(model.params, inputs)
print(inputs.encoder_hidden_states.shape)  --> torch.Size([1, 4, 48])
inputs.decoder_input_ids = torch.tensor { { 0, 7 } }
print(model(model.params, inputs).shape)   --> torch.Size([1, 2, 816])

--- Model.generate (after Model)
local sequences = model.generate(model.params, inputs, {
  max_new_tokens = 6, do_sample = true, temperature = 0.8, seed = 42,
})
print(sequences.shape)  --> torch.Size([2, 11])
local options = { skip_special_tokens = true }
print(tokenizer:batch_decode(sequences, options)[1])  --> a red heart...

--- Model.get_audio_features
local clap = redco.models.from_pretrained "clap"
local inputs = {
  input_features = torch.randn { 2, 4, 16, 4 },
  is_longer = torch.zeros { 2, 1 },
}
local features = clap.get_audio_features(clap.params, inputs)
print(features.shape)  --> torch.Size([2, 6])

--- Model.get_image_embeddings
local sam = redco.models.from_pretrained "sam2"
local images = sam.get_image_embeddings(sam.params, {
  pixel_values = torch.rand { 1, 1, 16, 16 },
})
local masks, scores = sam(sam.params, {
  image_embeddings = images,
  input_boxes = torch.tensor { { { 3, 3, 12, 9 }, { 1, 8, 5, 15 } } },
})
print(masks.shape)   --> torch.Size([1, 2, 2, 8, 8])
print(scores.shape)  --> torch.Size([1, 2, 2])

--- Model.get_image_features
local clip = redco.models.from_pretrained "clip"
local inputs = { pixel_values = torch.rand { 2, 3, 12, 12 } }
local features = clip.get_image_features(clip.params, inputs)
print(features.shape)  --> torch.Size([2, 20])

--- Model.get_text_features
local clip = redco.models.from_pretrained "clip"
local inputs = { input_ids = torch.tensor { { 38, 5, 39 }, { 38, 39, 39 } } }
local features = clip.get_text_features(clip.params, inputs)
print(features.shape)  --> torch.Size([2, 20])

--- Model.hidden_states (after Model)
local hidden = model.hidden_states(model.params, inputs)
print(hidden.shape)  --> torch.Size([2, 5, 48])

--- Model.logits (after Model.hidden_states)
print(model.logits(model.params, hidden).shape)  --> torch.Size([2, 5, 768])

--- Model.logprobs (after Model)
local ids = torch.tensor { { 64, 331, 67, 297, 471 } }
local batch = { input_ids = ids, labels = ids }
local logprobs, labels = model.logprobs(model.params, batch, { shift = true })
print(logprobs.shape, labels)
--> torch.Size([1, 5])  tensor([[ 331,   67,  297,  471, -100]])

--- Model.loss (after Model)
local ids = torch.tensor { { 64, 331, 67, 297, 471 } }
local batch = {
  input_ids = ids[{ {}, { 0, -1 } }], labels = ids[{ {}, { 1 } }],
}
local loss, count = model.loss(model.params, batch)
print(loss.shape, count)  --> torch.Size([])  tensor(4)

--- Model.loss_fn (after Model)
local trainer = redco.Trainer {
  deployer = redco.Deployer { seed = 42 }, params = model.params,
  collate_fn = redco.data.default_collate, loss_fn = model.loss_fn,
  optimizer = redco.optim.adamw { learning_rate = 1e-4 },
}

--- Model.resize_token_embeddings
local tokenizer = redco.Tokenizer.from_pretrained "gpt2"
local model = redco.models.from_pretrained "gpt2"
local markers = { "<|im_start|>", "<|im_end|>" }
tokenizer:add_special_tokens { additional_special_tokens = markers }
model.resize_token_embeddings(#tokenizer, { pad_to_multiple_of = 64 })
print(#tokenizer, model.config.vocab_size)  --> 770  832

--- Model.save_gguf (after Model)
model.save_gguf("workdir/model.gguf", {
  type = "q8_0", tokenizer = tokenizer,
})
print(redco.models.from_pretrained "workdir/model.gguf")
--> GPT2LMHeadModel: 124848 parameters in 40 tensors

--- Model.save_pretrained (after Model)
model.save_pretrained "workdir/model"
tokenizer:save_pretrained "workdir/model"
print(redco.models.from_pretrained("workdir/model").config.n_layer)  --> 3

--- Model:__call (after Model)
local logits = model(model.params, inputs)
print(logits.shape)  --> torch.Size([2, 5, 768])

--- redco.models.new_batch (after Model)
local batch = redco.models.new_batch(model, model.params,
  { max_rows = 8, max_length = 60 })
print(batch)  --> GenerationBatch(0 open, 0 waiting)

--- redco.models.json_logits_processor (after Model)
local processor = redco.models.json_logits_processor(tokenizer, [[
  {"items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 1}]])
local ids = model.generate(model.params, inputs,
  { logits_processor = processor, max_new_tokens = 30 })
local text = tokenizer:decode(ids[0]:narrow(0, 5, ids:size(1) - 5),
  { skip_special_tokens = true })
print(text:find "^%s*%[%s*[12]%s*%]" ~= nil)  --> true

--- GenerationBatch (after redco.models.new_batch)
local row = batch:add({ 30, 31, 32 }, { temperature = 0, max_new_tokens = 4 })
batch:run()
print(#row.tokens, row.finish_reason)  --> 4  length

--- GenerationBatch:add (after redco.models.new_batch)
local row = batch:add({ 30, 31 }, {
  max_new_tokens = 2, seed = 1, top_p = 0.9,
  on_token = function(row, token, logprob) print(#row.tokens) end,
})
batch:run()
--> 1
--> 2

--- GenerationBatch:cancel (after redco.models.new_batch)
local row = batch:add { 30, 31 }
batch:cancel(row)
print(row.finish_reason)  --> cancelled

--- GenerationBatch:is_idle (after redco.models.new_batch)
print(batch:is_idle())  --> true

--- GenerationBatch:run (after redco.models.new_batch)
local row = batch:add({ 30, 31 }, { max_new_tokens = 3 })
batch:run()
print(#row.tokens)  --> 3

--- GenerationBatch:step (after redco.models.new_batch)
local row = batch:add({ 30, 31 }, { max_new_tokens = 2 })
print(#batch:step(), #row.tokens)  --> 0  1
print(batch:step()[1] == row)  --> true

--- redco.models.families
local with_gguf = 0
for _, row in ipairs(redco.models.families()) do
  if #row.gguf > 0 then with_gguf = with_gguf + 1 end
end
print(with_gguf)  --> 16
