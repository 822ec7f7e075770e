--- redco.contrastive
local tokenizer = redco.Tokenizer.from_pretrained "gpt2"
tokenizer.pad_token = tokenizer.eos_token
local model = redco.models.from_pretrained("gpt2", { task = "features" })
local function vectors_of(params, texts)
  local batch = tokenizer(texts, { padding = true })
  return model(params, batch, { pooling = "mean" })
end
local questions = vectors_of(model.params, { "a taxi?", "a heart?" })
local answers = vectors_of(model.params, { "blue", "red" })
local ranking = redco.contrastive.multiple_negatives_ranking
local loss, count = ranking { questions, answers }
print(loss.shape, count)  --> torch.Size([])  tensor(2.)

--- redco.contrastive.cosent
local a = torch.tensor { { 1.0, 0.0 }, { 1.0, 1.0 } }
local b = torch.tensor { { 0.0, 1.0 }, { 1.0, 0.9 } }
local labels = torch.tensor { 0.1, 0.8 }
local loss = redco.contrastive.cosent({ a, b },
  { labels = labels, scale = 1 })
print(loss)  --> tensor(0.3136)

--- redco.contrastive.matryoshka
local anchors, positives = torch.eye(4), torch.eye(4) + 0.5
local loss = redco.contrastive.matryoshka({ anchors, positives }, {
  loss = "multiple_negatives_ranking", matryoshka_dims = { 4, 2 },
})
print(loss:item() > 0)  --> true

--- redco.contrastive.multiple_negatives_ranking
local anchors = torch.tensor { { 1.0, 0.0 }, { 0.0, 1.0 } }
local positives = torch.tensor { { 0.9, 0.2 }, { 0.3, 1.1 } }
local negatives = torch.tensor { { -0.5, 1.0 }, { 1.0, 0.4 } }
local loss, count = redco.contrastive.multiple_negatives_ranking(
  { anchors, positives, negatives }, { scale = 10 })
print(loss, count)  --> tensor(0.4437)  tensor(2.)

--- redco.contrastive.multiple_negatives_symmetric_ranking
local anchors = torch.tensor { { 1.0, 0.0 }, { 0.0, 1.0 } }
local positives = torch.tensor { { 0.9, 0.2 }, { 0.3, 1.1 } }
local loss = redco.contrastive.multiple_negatives_symmetric_ranking(
  { anchors, positives }, { similarity_fct = "dot_score", scale = 1 })
print(loss)  --> tensor(0.3882)
