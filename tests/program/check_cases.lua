-- Training scripts with one mistake each: {the finding, a script}, for check_spec.lua.
local cases = {}

local source = os.getenv "REDCO_SOURCE"

-- Returns a script: the template with a value for each @name@, those of `changes` first.
local function script(template, defaults, changes)
  local text = template
  for _, values in ipairs { changes, defaults } do
    for name, value in pairs(values) do
      text = text:gsub("@" .. name .. "@", function() return value end)
    end
  end
  assert(not text:find "@%l+@", text:match "@%l+@")
  return text
end

local head = [[
local redco = require "redco"
local torch, nn, data = redco.torch, redco.nn, redco.data
local cases = "]] .. source .. [[/tests/cases/"
local deployer = redco.Deployer { seed = 1, workdir = "run" }
]]

local last = [[
redco.Trainer {
  deployer = deployer, params = params, collate_fn = collate_fn, loss_fn = loss_fn,
  optimizer = redco.optim.adamw { learning_rate = learning_rate }, @trainer@
}:fit { train_examples = train, per_device_batch_size = 8, n_epochs = 2, @fit@ }
print "not reached"
]]

local tokenizer = [[
local tokenizer = redco.Tokenizer.from_pretrained(cases .. "llama3")
tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}"
  .. "<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
  .. "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
]]

-- Conversations with a small LLaMA. `tokens` changes ids and labels of an example i.
local chat = head .. tokenizer .. [[
@before@
local model = redco.models.from_config { model_type = "llama", vocab_size = @size@,
  hidden_size = 16, intermediate_size = 32, num_hidden_layers = 1, num_attention_heads = 2,
  max_position_embeddings = @context@, bos_token_id = tokenizer.bos_token_id,
  eos_token_id = tokenizer.eos_token_id }
local records = {}
for i = 1, 24 do
  records[i] = { messages = { { role = "user", content = "What comes after " .. @question@ .. "?" },
    { role = "assistant", content = ("The number %d is next"):format(i + 1)
      .. (" and so on"):rep(i % 4) .. "." } } }
end
@records@
local train = data.conversations(records, { tokenizer = tokenizer, @options@ })
local params, learning_rate, loss_fn = model.params, 1e-3, model.loss_fn
local pad = tokenizer.pad_token_id
local train = train:map(function(example)
  local ids, labels = example.input_ids:tolist(), example.labels:tolist()
  @tokens@
  return { input_ids = ids, labels = labels }
end)
local padded = data.padding_collate { pad_token_id = pad }
local collate_fn = function(examples)
  local batch = padded(examples)
  @batch@
  return batch
end
@after@
]] .. last
local of_chat = { before = "", size = "#tokenizer", context = "256", question = "i", options = "",
  records = "", tokens = "", batch = "", after = "", trainer = "", fit = "" }

-- Vectors and classes with a layer.
local plain = head .. [[
local params = { layer = nn.Linear(4, 3), @params@ }
local learning_rate, train = @rate@, {}
for i = 1, 30 do
  train[i] = { x = torch.randn({ 4 }, { generator = torch.Generator(i) }), label = @label@ }
end
@before@
local collate_fn = @collate@
local loss_fn = function(rng, state, params, batch) return @loss@ end
]] .. last
local of_plain = { params = "", rate = "0.01", label = "i % 3", before = "",
  collate = "data.default_collate", trainer = "", fit = "",
  loss = "nn.cross_entropy(nn.linear(params.layer, batch.x), batch.label)" }

-- Pictures with a ViT.
local pictures = head .. [[
local folder = "vit_with_processor"
local model = @model@
local train = {}
for i = 1, 16 do
  train[i] = { label = i % 5, image = torch.randint(0, 256, { 3, 12, 12 },
    { generator = torch.Generator(i), dtype = "uint8" }) }
end
local params, learning_rate, loss_fn = model.params, 1e-3, model.loss_fn
local process = data.image_processor(folder)
local collate_fn = function(examples)
  local images, labels = {}, {}
  for i, example in ipairs(examples) do images[i], labels[i] = example.image, example.label end
  return { pixel_values = @pixels@, labels = torch.tensor(labels) }
end
]] .. last
local of_pictures = { model = "redco.models.from_pretrained(folder)", pixels = "process(images)",
  trainer = "", fit = "" }

-- Translations with a T5.
local translations = head .. [[
local tokenizer = redco.Tokenizer.from_pretrained(cases .. "t5_relu_tied")
local model = redco.models.from_config { model_type = "t5", vocab_size = #tokenizer, d_model = 16,
  d_kv = 8, d_ff = 16, num_layers = 1, num_heads = 2, pad_token_id = tokenizer.pad_token_id,
  eos_token_id = tokenizer.eos_token_id, decoder_start_token_id = tokenizer.pad_token_id }
local train = {}
for i = 1, 16 do train[i] = { "the sea " .. ("a "):rep(i), ("sea the "):rep(i % 5 + 1) .. i } end
local params, learning_rate, loss_fn = model.params, 1e-3, model.loss_fn
local collate_fn = function(examples)
  local from, to = {}, {}
  for i, example in ipairs(examples) do from[i], to[i] = unpack(example) end
  local batch = tokenizer(from, { padding = true })
  local targets = tokenizer(to, { padding = true, add_special_tokens = @special@ })
  batch.labels = @labels@
  @batch@
  return batch
end
]] .. last
local of_translations = { special = "true", batch = "", trainer = "", fit = "",
  labels = "targets.input_ids:masked_fill(targets.attention_mask:eq(0), -100)" }

-- Classes of texts with a BERT.
local classes = head .. [[
local tokenizer = redco.Tokenizer.from_pretrained(cases .. "bert")
local model = @model@
local train = {}
for i = 1, 16 do train[i] = { text = "the sea " .. ("a "):rep(i), label = i % 2 } end
local params, learning_rate, loss_fn = model.params, 1e-3, model.loss_fn
local collate_fn = function(examples)
  local texts, labels = {}, {}
  for i, example in ipairs(examples) do texts[i], labels[i] = example.text, example.label end
  local batch = tokenizer(texts, { padding = true })
  batch.labels = torch.tensor(labels)
  @batch@
  return batch
end
]] .. last
local small_bert = "model_type = 'bert', vocab_size = #tokenizer, hidden_size = 16, "
  .. "intermediate_size = 16, num_hidden_layers = 1, num_attention_heads = 2"
local of_classes = { batch = "", trainer = "", fit = "",
  model = ("redco.models.from_config({ %s, num_labels = 2 }, { task = 'sequence_classification' })")
    :format(small_bert) }

-- Pairs of answers with a small LLaMA.
local preferences = head .. tokenizer .. [[
local model = redco.models.from_config { model_type = "llama", vocab_size = #tokenizer,
  hidden_size = 16, intermediate_size = 32, num_hidden_layers = 1, num_attention_heads = 2 }
local train = {}
local function encode(text) return tokenizer:encode(text, { add_special_tokens = false }) end
for i = 1, 16 do
  local chosen, rejected = encode("It is " .. i), encode(@rejected@)
  chosen[#chosen + 1], rejected[#rejected + 1] = tokenizer.eos_token_id, tokenizer.eos_token_id
  train[i] = { prompt = tokenizer:encode("What is " .. i), chosen = chosen, rejected = rejected }
end
@after@
local params, learning_rate = model.params, 1e-3
local collate_fn = function(rows)
  return redco.preference.collate(rows, { pad_token_id = tokenizer.pad_token_id, @collate@ })
end
local loss_fn = function(_, _, params, batch)
  local logps, counts = redco.preference.sequence_logprobs(model, params, batch)
  return redco.preference.cpo { logps = logps, counts = counts }
end
]] .. last
local of_preferences = { rejected = "'No'", after = "", collate = "", trainer = "", fit = "" }

-- The same from records. So many prompts are long, and so many pairs have two equal answers.
local function of_records(n_long, n_same)
  return ([[
local records = {}
for i = 1, 16 do
  records[i] = { prompt = (i <= %d and ("long "):rep(99) or "What is ") .. i,
    chosen = "It is " .. i, rejected = i <= %d and "It is " .. i or "No" }
end
train = redco.data.preferences(records, { tokenizer = tokenizer, max_length = 90 })]])
    :format(n_long, n_same)
end

-- Rewards with a small LLaMA.
local rewards = head .. tokenizer .. [[
local model = redco.models.from_config { model_type = "llama", vocab_size = #tokenizer,
  hidden_size = 16, intermediate_size = 32, num_hidden_layers = 1, num_attention_heads = 2,
  max_position_embeddings = 64 }
local prompts = {}
for i = 1, 40 do prompts[i] = { prompt = "What is " .. i } end
@before@
local sampler = redco.rl.language.sampler {
  model = model, tokenizer = tokenizer, deployer = deployer, examples = prompts,
  rewards = { mine = @reward@ }, num_prompts = 4, num_generations = 4,
  max_completion_length = 8, max_rows = 16, per_device_batch_size = 16 }
local params, learning_rate = model.params, 1e-3
local collate_fn, loss_fn = sampler.collate_fn, sampler:loss_fn {}
local trainer
local train = function(epoch_idx) return sampler:rollout(trainer, epoch_idx) end
trainer = redco.Trainer {
  deployer = deployer, params = params, collate_fn = collate_fn, loss_fn = loss_fn,
  custom_state = sampler.state, optimizer = redco.optim.adamw { learning_rate = learning_rate },
}
trainer:fit { train_examples = train, per_device_batch_size = 16, n_epochs = 2 }
print "not reached"
]]
local of_rewards = { before = "", reward = "function(text) return #text end" }

local function add(finding, template, defaults, changes)
  cases[#cases + 1] = { finding, script(template, defaults, changes) }
end

local function chats(finding, changes) add(finding, chat, of_chat, changes) end
local function plains(finding, changes) add(finding, plain, of_plain, changes) end

-- Without a mistake.
add(nil, chat, of_chat, {})
add(nil, plain, of_plain, {})
add(nil, pictures, of_pictures, {})
add(nil, translations, of_translations, {})
add(nil, classes, of_classes, {})
add(nil, preferences, of_preferences, {})
add(nil, preferences, of_preferences, { after = of_records(8, 0) })
add(nil, rewards, of_rewards, {})
chats(nil, { after = "train = data.pack(train, { seq_len = 128, pad_token_id = pad })" })

chats(nil, { after = [[
loss_fn = function(_, _, params, batch)  -- it shifts, and ignores padding, by itself
  local n = batch.input_ids:size(1) - 1
  local logits, labels = model(params, batch):narrow(1, 0, n), batch.labels:narrow(1, 1, n)
  return nn.cross_entropy(logits, labels:masked_fill(labels:eq(pad), -100))
end]], tokens = "for t = #ids, 2, -1 do labels[t] = labels[t - 1] end labels[1] = -100",
  batch = "batch.labels = batch.labels:masked_fill(batch.attention_mask:eq(0), pad)" })
chats(nil, { batch = "batch.labels = batch.labels:masked_fill(batch.labels:eq(-100), pad)",
  after = [[
loss_fn = function(_, _, params, batch)
  return model.loss(params, batch, { ignore_index = pad })
end]] })
chats(nil, { tokens = "labels = { unpack(ids) }", batch = "batch.labels = torch.where("
  .. "torch.arange(batch.input_ids:size(1)):lt(20), torch.full_like(batch.input_ids, -100), "
  .. "batch.input_ids)", after = [[
loss_fn = function(rng, _, params, batch)
  return model.loss(params, batch, { rng = rng, shift = true })
end]] })

chats(nil, { after = [[
local words = {}
local plain = { add_special_tokens = false }
for i = 1, 40 do words[i] = tokenizer:encode(("and "):rep(i % 5) .. i, plain) end
words[3] = { 5 }
train = data.pack(words, { seq_len = 16, pad_token_id = pad })]] })

-- Labels.
chats("untrained_rows", {
  tokens = "if #ids % 2 == 0 then for t = 1, #ids do labels[t] = -100 end end" })
chats("labels_equal_inputs", { tokens = "for t = 1, #ids do labels[t] = ids[t] end" })
chats("labels_equal_inputs", {
  tokens = "for t = #ids, 2, -1 do labels[t] = labels[t - 1] end labels[1] = -100" })
chats("labels_shifted", { tokens = "table.remove(labels, 1) labels[#ids] = -100" })
chats("labels_shifted_twice", { after = [[
loss_fn = function(rng, _, params, batch)
  return model.loss(params, batch, { rng = rng, shift = true })
end]] })
chats("prompts_trained", { tokens = "for t = 1, #ids - 1 do labels[t] = ids[t + 1] end" })
chats("prompts_trained", { tokens = "labels = { unpack(ids) }", batch = "batch.labels = "
  .. "batch.labels:masked_fill(batch.attention_mask:eq(0), -100)", after = [[
loss_fn = function(rng, _, params, batch)
  return model.loss(params, batch, { rng = rng, shift = true })
end]] })
add("labels_equal_inputs", classes, of_classes, {
  model = "redco.models.from_config { " .. small_bert .. " }",
  batch = "batch.labels = batch.input_ids" .. ":masked_fill(batch.attention_mask:eq(0), -100)" })

-- Padding.
chats("padding_trained", {
  batch = "batch.labels = batch.labels:masked_fill(batch.attention_mask:eq(0), pad)" })
add("padding_trained", translations, of_translations, { labels = "targets.input_ids" })
add("padding_attended", classes, of_classes, { batch = "batch.attention_mask = nil" })
chats("padding_attended", {
  batch = "batch.attention_mask = torch.ones_like(batch.attention_mask)" })
chats("empty_rows", { batch = "batch.attention_mask[0]:zero_() batch.labels[0]:fill_(-100) "
  .. "batch.labels[0][0] = 1" })

-- Beginnings and ends.
chats("doubled_bos", { tokens = "table.insert(ids, 1, ids[1]) table.insert(labels, 1, -100)" })
chats("missing_bos", { tokens = "table.remove(ids, 1) table.remove(labels, 1)" })
chats("missing_eos", { tokens = "for t = #ids - 1, #ids do labels[t] = -100 end ids[#ids] = 5" })
add("missing_eos", translations, of_translations, { special = "false" })
chats("cut_ends", { options = "max_length = 44, truncation = 'tokens'" })
add("doubled_eos", translations, of_translations, {
  batch = [[
batch.labels = torch.cat({ batch.labels, torch.full({ #examples, 1 }, -100):long() }, 1)
for i = 0, #examples - 1 do
  batch.labels[i][batch.labels[i]:ne(-100):sum():item()] = tokenizer.eos_token_id
end]] })

-- Tokens.
chats("ids_outside", { size = "650" })
chats("ids_outside", { tokens = "ids[3] = -1" })
chats("vocabulary", { before = "tokenizer:add_tokens { 'zzz' }", size = "#tokenizer - 1" })
chats("too_long", { context = "40" })
chats("unknown_tokens", { before = "tokenizer.unk_token = 'e'" })
chats("literal_markers", { question = "'<|im_start|>' .. i" })
chats("template_cannot_mask", {
  before = [[
local conversations = data.conversations
local function ids_of(record) return tokenizer:apply_chat_template(record.messages) end
data = setmetatable({ conversations = function(records)
  local list = {}
  for i, record in ipairs(records) do
    local ids, labels = ids_of(record), {}
    for t = 1, #ids do labels[t] = t > 30 and ids[t + 1] or -100 end
    list[i] = { input_ids = torch.tensor(ids), labels = torch.tensor(labels) }
  end
  return data.dataset(#list, function(i) return list[i] end)
end }, { __index = redco.data })
tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}"
  .. "<|end_header_id|>\n\n{{ m.content }}{% if m.role == 'assistant' and not loop.last %} old"
  .. "{% endif %}<|eot_id|>{% endfor %}"]] })

-- Examples.
chats("left_out", { options = "max_length = 120",
  records = "for i = 1, 20 do records[i].messages[1].content = ('long '):rep(120) end" })
chats("left_out", { options = "skip_invalid = true",
  records = "for i = 1, 6 do records[i].messages[2] = nil end" })
chats("duplicates", { records = "records[24], records[23] = records[1], records[2]" })
add("same_answers", preferences, of_preferences, { rejected = "'It is ' .. i" })
add("left_out", preferences, of_preferences, { after = of_records(13, 0) })
add("left_out", preferences, of_preferences, { after = of_records(0, 2) })
add("collate_fails", preferences, of_preferences, {
  after = "for t = 1, 60 do train[7].prompt[t] = train[7].prompt[1] end",
  collate = "max_length = 40, truncation_mode = 'keep_start'" })
plains("duplicates", { before = "train[31], train[32] = train[1], train[2]" })
plains("contradictions", { before = "train[31] = { x = train[1].x, label = 2 }" })
plains("evaluation_is_training", { fit = "eval_examples = train" })
plains("evaluation_in_training", {
  fit = "eval_examples = { train[1], train[2], { x = torch.zeros(4), label = 1 } }" })
plains("no_examples", { before = "train = {}" })
add("examples_fail", rewards, of_rewards, { reward = "function() end" })
add("refused_prompts", rewards, of_rewards, {
  before = "for i = 38, 40 do prompts[i].prompt = ('long '):rep(80) end" })
plains("collate_fails", { before = "train[7] = { x = torch.zeros(5), label = 1 }" })

-- Numbers.
plains("not_finite", { before = "train[5].x[2] = 0 / 0" })
plains("constant_inputs", { collate = "function(examples) local batch = "
  .. "data.default_collate(examples) batch.x:fill_(1) return batch end" })
plains("constant_labels", { label = "1" })
plains("sorted_labels", { label = "math.floor((i - 1) / 10)", fit = "shuffle = false" })
add("image_range", pictures, of_pictures, { pixels = "torch.stack(images):float()" })
add("image_range", pictures, of_pictures, { pixels = "torch.stack(images):float() / 255" })

plains("unscaled_images", {
  before = "for i = 1, 30 do train[i].images = torch.full({ 3, 2, 2 }, i * 8) end" })

-- Parameters, loss and learning rate.
plains("unused_parameters", { params = "old = nn.Linear(4, 3)" })
plains("nothing_trained", {
  loss = "nn.cross_entropy(nn.linear(params.layer, batch.x):detach(), batch.label)" })
add("new_parameters", classes, of_classes, { model =
  "redco.models.from_pretrained(cases .. 'bert', { task = 'sequence_classification' })" })
add("new_and_frozen", classes, of_classes, { model =
  "redco.models.from_pretrained(cases .. 'bert', { task = 'sequence_classification' })",
  trainer = "optimizer = redco.optim.freeze(redco.optim.adamw { learning_rate = 1e-3 }, "
    .. "function(name) return name:find 'classifier' or name:find 'pooler' end)" })
chats("loss_above_chance", { after = [[
model = redco.models.from_pretrained(cases .. "llama3")
torch.no_grad(function() for _, param in pairs(model.params) do param:mul_(8) end end)
params, loss_fn = model.params, model.loss_fn]] })
plains("zero_learning_rate", { rate = "0" })
plains("short_schedule", { rate = "deployer:get_lr_schedule_fn { train_size = 30, n_epochs = 2, "
  .. "per_device_batch_size = 8, learning_rate = 0.1 }", fit = "n_epochs = 10" })
plains("loss_not_finite", { loss =
  "nn.cross_entropy(nn.linear(params.layer, batch.x), batch.label) / 0" })
plains("loss_fails", { loss = "nn.cross_entropy(nn.linear(params.layer, batch.y), batch.label)" })
plains("script_fails", { before = "error 'the file is not there'" })

return cases
