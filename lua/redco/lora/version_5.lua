--- The names that version 5 of transformers gives to layers of some models, in folders of adapters
--- from there. The parameters here have the names of version 4, which files of models have in both.

-- Pairs of a pattern in a name of version 5 and its replacement in version 4. A name may need
-- several of these rules, and the model decides which: those count that give the name of a layer.
local rules = {
  -- CLIP and SigLIP, alone and in models of images and texts
  { "^encoder%.layers%.", "vision_model.encoder.layers." },
  { "^encoder%.layers%.", "text_model.encoder.layers." },
  { "^embeddings%.", "vision_model.embeddings." }, { "^head%.", "vision_model.head." },
  { "^head$", "text_model.head" },
  { "^model%.vision_tower%.", "model.vision_tower.vision_model." },
  -- ViT and DeiT, BEiT, DINO
  { "^(%w+)%.layers%.", "%1.encoder.layer." }, { "^model%.layer%.", "layer." },
  { "^layers%.", "encoder.layer." },
  { "%.attention%.q_proj$", ".attention.attention.query" },
  { "%.attention%.k_proj$", ".attention.attention.key" },
  { "%.attention%.v_proj$", ".attention.attention.value" },
  { "%.attention%.o_proj$", ".attention.output.dense" },
  { "%.mlp%.fc1$", ".intermediate.dense" }, { "%.mlp%.fc2$", ".output.dense" },
  { "%.mlp%.down_proj$", ".mlp.weights_out" },
  -- Swin and SegFormer
  { "%.attention%.q_proj$", ".attention.self.query" },
  { "%.attention%.k_proj$", ".attention.self.key" },
  { "%.attention%.v_proj$", ".attention.self.value" },
  { "%.stages%.(%d+)%.blocks%.", ".encoder.block.%1." },
  { "^stages%.(%d+)%.blocks%.", "encoder.block.%1." }, { "%.mlp%.fc(%d)$", ".mlp.dense%1" },
  { "%.linear_projections%.", ".linear_c." },
  -- DETR and RT-DETR
  { "_attn%.o_proj$", "_attn.out_proj" }, { "%.mlp%.(fc%d)$", ".%1" },
  { "%.encoder%.aifi%.", ".encoder.encoder." },
  -- Here the names are the newer ones: models that read images, before version 4.52, or sounds
  { "^language_model%.model%.", "model.language_model." },
  { "^language_model%.lm_head$", "lm_head" },
  { "^vision_tower%.", "model.vision_tower." }, { "^audio_tower%.", "model.audio_tower." },
  { "^multi_modal_projector%.", "model.multi_modal_projector." },
  -- Nemotron-H, Phi-3.5-MoE
  { "^model%.layers%.", "backbone.layers." }, { "%.mlp%.router$", ".block_sparse_moe.gate" },
}

--- Returns the name that one of version 5 has in version 4: the first of `exists`, a set, or nil.
return function(name, exists)
  local names, is_new = { name }, { [name] = true }
  local i = 1
  while names[i] do
    if exists[names[i]] then return names[i] end
    for _, rule in ipairs(rules) do
      local other, n = names[i]:gsub(rule[1], rule[2], 1)
      if n > 0 and not is_new[other] then names[#names + 1], is_new[other] = other, true end
    end
    i = i + 1
  end
end
