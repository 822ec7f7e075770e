--- Appends `text` to the list `lines`, wrapped to `width` columns, never around an equals sign. The
--- first line begins with `first`, the others with `hanging`.
return function(lines, width, text, first, hanging)
  local line, is_empty = first or "", true
  for word in text:gsub(" = ", "\1=\1"):gmatch "%S+" do
    if not is_empty and #line + 1 + #word > width then
      lines[#lines + 1] = line
      line, is_empty = hanging or "", true
    end
    line = line .. (is_empty and "" or " ") .. word:gsub("\1", " ")
    is_empty = false
  end
  lines[#lines + 1] = line
end
