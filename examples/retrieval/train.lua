-- An embedding model that finds the translation of a verse among others: English and Spanish texts
-- of one meaning get vectors that are alike. Any pairs of texts that belong together will do.
local redco = require "redco"
local contrastive, metrics, torch = redco.contrastive, redco.metrics, redco.torch

local o = redco.options {
  data = "",  -- JSONL of pairs; "": the verses of examples/text_to_text
  query_key = "source", document_key = "target",  -- the names of the two texts
  model_dir = "",  -- the folder of an encoder to start from; "": a new BERT of this shape
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42, n_model_shards = 1, zero = 0,
  n_epochs = 6,
  max_steps = 0,  -- more than 0 ends the run early
  -- Each text is compared with those of the global batch; the other size costs memory only.
  global_batch_size = 128, per_device_batch_size = 128,
  max_length = 64,  -- in tokens; what is longer is cut off
  held_out_every = 10,  -- each tenth pair is held out
  scale = 20,  -- of similarities: 1 / temperature
  matryoshka_dims = { 128, 32 },  -- the vectors' first numbers that are useful alone
  learning_rate = 1e-3, warmup_ratio = 0.1, weight_decay = 0.01, grad_norm_clip = 1.0,
  hidden_size = 128, num_hidden_layers = 2, num_attention_heads = 4, intermediate_size = 256,
  dropout = 0.1,  -- of a new model
}
local verses = redco.script_folder() .. "../text_to_text/data/"
local pairs_of = redco.data.jsonl(o.data ~= "" and o.data or verses .. "verses.jsonl")
local train, held_out = redco.data.split(pairs_of, { every = o.held_out_every })

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir }
local is_new = o.model_dir == ""
local tokenizer = redco.Tokenizer.from_pretrained(is_new and verses .. "tokenizer" or o.model_dir)
local model = is_new and redco.models.from_config({
  model_type = "bert", vocab_size = #tokenizer, pad_token_id = tokenizer.pad_token_id,
  hidden_size = o.hidden_size, num_hidden_layers = o.num_hidden_layers,
  num_attention_heads = o.num_attention_heads, intermediate_size = o.intermediate_size,
  max_position_embeddings = math.max(o.max_length, 64),
  hidden_dropout_prob = o.dropout, attention_probs_dropout_prob = o.dropout,
}, { task = "features", generator = deployer:gen_rng() })
  or redco.models.from_pretrained(o.model_dir, { task = "features" })
if not model.sentence_pooling then
  model.set_sentence_pooling { pooling = "mean", max_seq_length = o.max_length }
end

-- The tokens of one of the two texts of each pair.
local function tokenize(examples, key)
  local texts = {}
  for i, example in ipairs(examples) do
    texts[i] = example[key] or error("a pair has no " .. key, 0)
  end
  return tokenizer(texts, { padding = true, truncation = true, max_length = o.max_length })
end

local function collate_fn(rows)
  return { queries = tokenize(rows, o.query_key), documents = tokenize(rows, o.document_key) }
end

local function vectors_of(rng, params, batch, is_training)
  local call = { train = is_training, rng = rng }
  return model(params, batch.queries, call), model(params, batch.documents, call)
end

local function loss_fn(rng, _, params, batch, is_training)
  local queries, documents = vectors_of(rng, params, batch, is_training)
  return contrastive.matryoshka({ queries, documents }, {
    loss = "multiple_negatives_symmetric_ranking", matryoshka_dims = o.matryoshka_dims,
    options = { scale = o.scale },
  })
end

-- Scores of finding the document of each held-out query among all of them.
local function score(_, preds)
  local queries, documents, own, results = {}, {}, {}, {}
  for i, pred in ipairs(preds) do queries[i], documents[i], own[i] = pred[1], pred[2], i end
  queries, documents = torch.stack(queries), torch.stack(documents)
  for _, size in ipairs(o.matryoshka_dims) do
    local function short(x)
      x = x:narrow(1, 0, size)
      return x / x:norm(2, { 1 }, true)
    end
    local scores, name = short(queries):matmul(short(documents):t()), "_" .. size
    results["recall_at_1" .. name] = metrics.recall_at_k(scores, own, { k = 1 })
    results["mrr" .. name] = metrics.mean_reciprocal_rank(scores, own)
    results["ndcg" .. name] = metrics.ndcg_at_k(scores, own)
  end
  return results
end

local schedule = deployer:get_lr_schedule_fn {
  train_size = #train, n_epochs = o.n_epochs, learning_rate = o.learning_rate,
  warmup_ratio = o.warmup_ratio, global_batch_size = o.global_batch_size,
  per_device_batch_size = o.per_device_batch_size }
local ckpt, info
if o.resume then ckpt, info = deployer:load_last_ckpt() end
local trainer = redco.Trainer {
  deployer = deployer, collate_fn = collate_fn, loss_fn = loss_fn,
  params = ckpt and ckpt.params or model.params, opt_state = ckpt and ckpt.opt_state,
  last_ckpt_info = info, lr_schedule_fn = schedule,
  -- A mean over tokens needs no pooler.
  optimizer = redco.optim.freeze(redco.optim.chain {
    redco.optim.clip_by_global_norm(o.grad_norm_clip),
    redco.optim.adamw { learning_rate = schedule, weight_decay = o.weight_decay },
  }, function(name) return name:find "^pooler%." ~= nil end),
}
local predictor = trainer:get_default_predictor { pred_fn = function(rng, params, batch)
  return { vectors_of(rng, params, batch, false) }
end }
-- Logs the scores, and the document that the first held-out query finds.
local function log_scores(when)
  local preds = predictor:predict { examples = held_out, params = trainer.params,
    per_device_batch_size = o.per_device_batch_size }
  local scores, size, documents = score(nil, preds), o.matryoshka_dims[1], {}
  for i, pred in ipairs(preds) do documents[i] = pred[2] / pred[2]:norm() end
  local found = torch.stack(documents):matmul(preds[1][1]):argmax():item() + 1
  deployer:log_info(("%s the training: recall@1 %.3f, MRR@10 %.3f, nDCG@10 %.3f\n  %s\n  -> %s")
    :format(when, scores["recall_at_1_" .. size], scores["mrr_" .. size], scores["ndcg_" .. size],
    held_out[1][o.query_key], held_out[found][o.document_key]))
end

log_scores "Before"
trainer:fit {
  train_examples = train, eval_examples = held_out, n_epochs = o.n_epochs, max_steps = o.max_steps,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  eval_predictor = predictor, eval_metric_fn = score, save_last_ckpt = true,
}
log_scores "After"
model.save_pretrained(o.workdir .. "/model", { params = trainer.params })
tokenizer:save_pretrained(o.workdir .. "/model")
deployer:log_info("the model is in " .. o.workdir .. "/model")
