# empty until the packages below exist
