--- Returns the text of an error without the place at its beginning, "train.lua:3: ".
return function(message) return (tostring(message):gsub("^[^ ]*:%d+: ", "")) end
