--- The relative shift of Transformer-XL (Dai et al., 2019): scores of the distances T to 1 - T
--- between a token and those that it attends to, [B, H, T, 2 T], as scores of pairs of tokens,
--- [B, H, T, T].
return function(x)
  local batch, n_heads, length = unpack(x.shape)
  return x:flatten(2):narrow(2, length, length * (2 * length - 1))
    :view { batch, n_heads, length, 2 * length - 1 }:narrow(3, 0, length)
end
