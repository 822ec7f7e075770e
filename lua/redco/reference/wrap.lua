--- Adds `text` to the list `lines`, broken between words into lines of at most `width` columns. The
--- first begins with `first`, the others with `hanging`.
return function(lines, width, text, first, hanging)
  local line, is_empty = first or "", true
  for word in text:gmatch "%S+" do
    if not is_empty and #line + 1 + #word > width then
      lines[#lines + 1] = line
      line, is_empty = hanging or "", true
    end
    line = line .. (is_empty and "" or " ") .. word
    is_empty = false
  end
  lines[#lines + 1] = line
end
