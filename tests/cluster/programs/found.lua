--- Small programs that failed once, by random draws; they run first.
return {
}
