--- The metadata of a GGUF file that is to be written.

--- Returns an object with functions that add a value, or none for nil. `list` has {key, type,
--- value} in their order, `by_key` the values.
return function(architecture)
  local w = { list = {}, by_key = {} }

  --- Adds a value whose key is not of the architecture.
  function w.add(key, type, value)
    if value == nil then return end
    w.list[#w.list + 1], w.by_key[key] = { key, type, value }, value
  end

  local function of_type(type)
    return function(key, value) w.add(architecture .. "." .. key, type, value) end
  end

  w.count = of_type "u32"
  w.fraction = of_type "f32"
  w.flag = of_type "bool"
  w.text = of_type "string"
  return w
end
