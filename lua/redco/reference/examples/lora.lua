--- redco.lora
local lora, model = redco.lora, redco.models.from_pretrained "gpt2"
local params = lora.add(model.params, { target_modules = { "c_attn" } })
local adamw = redco.optim.adamw { learning_rate = 1e-3 }
local trainer = redco.Trainer {
  deployer = redco.Deployer { seed = 42 }, params = params,
  optimizer = lora.freeze_base(adamw), loss_fn = model.loss_fn,
  collate_fn = redco.data.default_collate,
}
-- After trainer:fit { ... }:
lora.save_pretrained("workdir/adapters", trainer.params)

--- redco.lora.add
local model = redco.models.from_pretrained "gpt2"
local params = redco.lora.add(model.params, {
  target_modules = { "c_attn" }, r = 4, lora_alpha = 8,
})
print(redco.tree.count(params) - redco.tree.count(model.params))  --> 2304
print(params["transformer.h.0.attn.c_attn.lora_A.weight"].shape)
--> torch.Size([4, 48])
-- The norms are trained whole, too:
params = redco.lora.add(model.params, {
  target_modules = { "c_attn" }, modules_to_save = { "ln_1", "ln_2" },
})
print(redco.lora.is_frozen("transformer.h.0.ln_1.weight",
  params["transformer.h.0.ln_1.weight"]))  --> false

--- redco.lora.base (after redco.lora.add)
params = redco.lora.add(model.params, { target_modules = { "c_attn" } })
local base = redco.lora.base(params)
print(redco.tree.count(base) == redco.tree.count(model.params))  --> true

--- redco.lora.freeze_base
local adamw = redco.optim.adamw { learning_rate = 1e-3 }
local optimizer = redco.lora.freeze_base(adamw)

--- redco.lora.from_gguf (after redco.lora.save_gguf)
local opened = redco.lora.from_gguf("workdir/adapter.gguf", model)

--- redco.lora.from_pretrained
local model = redco.models.from_pretrained "gpt2"
local params = redco.lora.from_pretrained("adapters", model.params)
local inputs = { input_ids = torch.tensor { { 5, 6, 7 } } }
print(model(params, inputs):equal(model(model.params, inputs)))  --> false

--- redco.lora.is_frozen
print(redco.lora.is_frozen "h.0.attn.c_attn.weight")         --> true
print(redco.lora.is_frozen "h.0.attn.c_attn.lora_A.weight")  --> false
print(redco.lora.is_frozen "score.weight")                   --> false

--- redco.lora.merge (after redco.lora.add)
local merged = redco.lora.merge(params)
print(redco.tree.count(merged) == redco.tree.count(model.params))  --> true
model.save_pretrained("workdir/merged", { params = merged })

--- redco.lora.save_gguf
local model = redco.models.from_pretrained "gpt2"
local params = redco.lora.add(model.params, {
  target_modules = { "c_attn" },
})
redco.lora.save_gguf("workdir/adapter.gguf", model, params)

--- redco.lora.save_pretrained (after redco.lora.add)
redco.lora.save_pretrained("workdir/adapters", params, {
  base_model_name_or_path = "gpt2", task_type = "CAUSAL_LM",
})
