--- redco.preference
local model = redco.models.from_pretrained "gpt2"
local preference = redco.preference
local batch = preference.collate {
  { prompt = { 5, 6, 7 }, chosen = { 8, 9 }, rejected = { 10, 11, 12 } },
}
local params = redco.lora.add(model.params, { target_modules = { "c_attn" } })
local logps = preference.sequence_logprobs(model, params, batch)
local base = redco.lora.base(params)  -- the reference: without adapters
local ref_logps = torch.no_grad(function()
  return (preference.sequence_logprobs(model, base, batch))
end)
local loss = preference.dpo { logps = logps, ref_logps = ref_logps }
print(("%.4f"):format(loss:item()))  --> 0.6931

--- redco.preference.collate
local batch = redco.preference.collate {
  { prompt = { 5, 6, 7 }, chosen = { 8, 9 }, rejected = { 10, 11, 12 } },
}
print(batch.input_ids)
--> tensor([[[ 5,  6,  7,  8,  9,  0],
-->          [ 5,  6,  7, 10, 11, 12]]])
print(batch.labels[0][0])  --> tensor([-100, -100,    8,    9, -100, -100])

--- redco.preference.cpo
local logps = torch.tensor { { -4.0, -6.5 }, { -3.0, -2.0 } }
local counts = torch.tensor { { 3, 5 }, { 2, 2 } }
local loss = redco.preference.cpo { logps = logps, counts = counts }
local simpo = redco.preference.cpo { logps = logps, counts = counts,
  loss_type = "simpo", cpo_alpha = 0, beta = 2 }
print(loss, simpo)  --> tensor(2.0602)  tensor(1.3588)

--- redco.preference.distillation
local loss, count = redco.preference.distillation {
  logits = torch.tensor { { 0.5, -1.0, 2.0 }, { 1.5, 0.0, -0.5 } },
  teacher_logits = torch.tensor { { 1.0, 0.0, 0.5 }, { -1.0, 0.5, 0.25 } },
  labels = torch.tensor { 2, 1 }, beta = 0,  -- the forward divergence
}
print(loss, count)  --> tensor(0.7075)  tensor(2)

--- redco.preference.dpo
local loss, n_pairs, metrics = redco.preference.dpo {
  logps = torch.tensor { { -4.0, -6.5 }, { -3.0, -2.0 } },
  ref_logps = torch.tensor { { -5.0, -6.0 }, { -2.5, -3.0 } },
}
print(loss, n_pairs, metrics["rewards/accuracies"])
--> tensor(0.6960)  2  tensor(0.5000)

--- redco.preference.kto
local loss, n, metrics = redco.preference.kto {
  logps = torch.tensor { -4.0, -3.5 },
  ref_logps = torch.tensor { -5.0, -2.5 },
  desirable = torch.tensor { true, false },
  kl_logps = torch.tensor { -9.5, -7.0 },
  ref_kl_logps = torch.tensor { -9.5, -8.0 },
}
print(loss, n, metrics.kl)  --> tensor(0.4750)  2  tensor(0.5000)

--- redco.preference.orpo
local loss, n_pairs, metrics = redco.preference.orpo {
  logps = torch.tensor { { -4.0, -6.5 }, { -3.0, -2.0 } },
  counts = torch.tensor { { 3, 5 }, { 2, 2 } },
}
print(loss, metrics.nll_loss)  --> tensor(1.4912)  tensor(1.4000)

--- redco.preference.reward
local loss, n_pairs, metrics = redco.preference.reward {
  rewards = torch.tensor { { 1.5, 0.5 }, { -0.25, 1.0 } },
}
print(loss, n_pairs, metrics.accuracy)  --> tensor(0.9076)  2  tensor(0.5000)

--- redco.preference.sequence_logprobs
local model = redco.models.from_pretrained "gpt2"
local batch = redco.preference.collate {
  { prompt = { 5, 6, 7 }, chosen = { 8, 9 }, rejected = { 10, 11, 12 } },
}
local logps, counts =
  redco.preference.sequence_logprobs(model, model.params, batch)
print(logps.shape, counts)  --> torch.Size([1, 2])  tensor([[2, 3]])
