# Writes the code blocks of a page into the folder FOLDER. The first line of a block is a comment
# with the name of its file.
/^```(cpp|cmake)$/ { inside = 1; file = ""; next }
/^```$/ { inside = 0 }
inside && file == "" { file = FOLDER "/" $2 }
inside { print > file }
