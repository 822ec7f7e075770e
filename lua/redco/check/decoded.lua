--- Returns the text of tokens; negative ones, which no tokenizer has, are left out.
return function(tokenizer, ids)
  local known = {}
  for _, id in ipairs(ids) do
    if id >= 0 then known[#known + 1] = id end
  end
  return tokenizer:decode(known)
end
