"""The prompt at a terminal, by pexpect and a terminal of pyte: prompt_peer.py REDCO_LUA.

What a user sees is compared with whole screens, in which times are masked.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import pexpect
import pyte

PROGRAM = os.path.abspath(sys.argv[1])
PASTE_ON = b"\x1b[?2004h"  # the program reads a line from here on
WAIT = 20  # seconds, for a busy machine


class Terminal:
    """A program in a terminal of its own, with a new home unless it is given one."""

    def __init__(self, *args, columns=80, rows=50, command=PROGRAM, home=None, **variables):
        self.home = home or tempfile.mkdtemp()
        environment = {"PATH": os.environ["PATH"], "HOME": self.home, "TERM": "xterm",
                       "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **variables}
        self.child = pexpect.spawn(command, list(args), dimensions=(rows, columns), cwd=self.home,
                                   env={k: v for k, v in environment.items() if v is not None})
        self.child.delaybeforesend = None
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.prompts_seen = 0
        Terminal.newest = self

    def read(self):
        """False at the end of the program."""
        try:
            data = self.child.read_nonblocking(65536, 0.02)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        # The echo of Ctrl-C is nothing to see; pyte drops the text behind it too.
        self.stream.feed(data.replace(b"\x03", b""))
        return True

    def wait(self, condition, what):
        end = time.time() + WAIT
        while not condition():
            if not self.read() and not condition():
                raise AssertionError(f"the program ended before {what}:\n{self.text()}")
            assert time.time() < end, f"no {what} in:\n{self.text()}"

    def text(self):
        """The screen; times, versions and the home are masked."""
        text = "\n".join(line.rstrip() for line in self.screen.display).rstrip()
        text = text.replace(self.home, "HOME")
        for pattern, mask in ((r"\[\d+\.\d\d s\]", "[TIME]"), (r"0x[0-9a-f]+", "ADDRESS"),
                              (r"^redco-lua \d+\.\d+\.\d+;", "redco-lua VERSION;"),
                              (r"^\[\d\d:\d\d:\d\d\]", "[CLOCK]"),
                              (r"[\d.]+[kM]? examples/s", "RATE examples/s"),
                              (r" in \d+:\d\d", " in TIME")):
            text = re.sub(pattern, mask, text, flags=re.MULTILINE)
        return text

    def row(self):
        return self.screen.display[self.screen.cursor.y].rstrip()

    def send(self, keys):
        self.prompts_seen = self.raw.count(PASTE_ON)
        self.child.send(keys)

    def prompt(self):
        """Waits for a prompt that was not there when keys were last sent."""
        self.wait(lambda: self.raw.count(PASTE_ON) > self.prompts_seen
                  and self.row() in (">", ">>"), "prompt")
        return self

    def enter(self, *lines):
        for line in lines:
            self.send(line + "\r")
            self.prompt()
        return self

    def keys(self, keys, row):
        """Types, and waits until the row of the cursor is this."""
        self.send(keys)
        self.wait(lambda: self.row() == row, repr(row))
        return self

    def ended(self):
        self.wait(lambda: not self.read(), "end")
        self.child.close()
        return self.child.exitstatus, self.child.signalstatus


def expect(actual, expected):
    assert actual == expected, f"expected\n{expected}\ngot\n{actual}"


def see(terminal, screen):
    expect(terminal.text(), screen.strip("\n"))


def test_values():
    terminal = Terminal().prompt()
    terminal.enter("1 + 1", "x = torch.arange(6):view{2, 3}", "x", "x:float():mean(),", "'two'",
                   "x * 2;", "{ step = 3, params = { x, w = x:float() }, f = redco.tree.count }",
                   "_.step", "for i = 1, 2 do", "  print(i)", "end", "local y = 1", "who()",
                   "os.execute 'sleep 0.2'", "?redco.tree.count")
    see(terminal, """
redco-lua VERSION; :h for help, :q or Ctrl-D to end
> 1 + 1
2
> x = torch.arange(6):view{2, 3}
> x
tensor([[0, 1, 2],
        [3, 4, 5]])
[int64 [2, 3]]
> x:float():mean(),
>> 'two'
tensor(2.5000)
[float32 []]
two
> x * 2;
> { step = 3, params = { x, w = x:float() }, f = redco.tree.count }
{
  f = function redco.tree.count(tree) -> number,
  params = { int64 [2, 3], w = float32 [2, 3] },
  step = 3
}
> _.step
3
> for i = 1, 2 do
>>   print(i)
>> end
1
2
> local y = 1
y is gone: a local ends with its chunk; without `local` it stays
> who()
x  Tensor  int64 [2, 3]  48 bytes
> os.execute 'sleep 0.2'
0
[TIME]
> ?redco.tree.count
""" + help_screen("redco.tree.count") + ">")
    assert not re.search(rb"\x1b\[\d*m", terminal.raw), "colours in spite of NO_COLOR"
    terminal.send(":q\r")
    expect(terminal.ended(), (0, None))


def help_screen(name):
    """What the program's own help says, which other tests check."""
    code = f"print(require 'redco.help'.text(require '{name[:5]}'.{name[6:]}))"
    return subprocess.run([PROGRAM, "-e", code], capture_output=True, text=True, check=True).stdout


def test_errors():
    terminal = Terminal().prompt()
    terminal.enter("function inner(x) return x.y.z end", "function outer() inner {} end", "outer()",
                   "torch.zeros{2}.nothing", "x y", "error { 1 }", ":x", "'after'")
    see(terminal, """
redco-lua VERSION; :h for help, :q or Ctrl-D to end
> function inner(x) return x.y.z end
> function outer() inner {} end
> outer()
stdin:1: attempt to index field 'y' (a nil value)
        stdin:1: in function 'inner'
        stdin:1: in function 'outer'
        stdin:1: in main chunk
> torch.zeros{2}.nothing
stdin:1: a Tensor has no 'nothing'
> x y
stdin:1: '=' expected near 'y'
> error { 1 }
an error value that is not text: table {1}
> :x
:x: there are :h and :q
> 'after'
after
>""")


def test_colours():
    terminal = Terminal(NO_COLOR=None).prompt().enter("error 'mine'", "{ 'a' }")
    cells = terminal.screen.buffer
    expect(terminal.screen.display[2].rstrip(), "stdin:1: mine")
    expect(cells[2][0].fg, "red")
    expect(terminal.screen.display[4].rstrip(), '{ "a" }')
    expect((cells[4][0].fg, cells[4][2].fg), ("default", "green"))
    terminal = Terminal(TERM="dumb", NO_COLOR=None)
    for line in "1 + 1\n", "error 'mine'\n", ":q\n":
        terminal.send(line)
    expect(terminal.ended(), (0, None))
    assert b"\x1b" not in terminal.raw, terminal.raw


def test_completion():
    terminal = Terminal().prompt().enter("x = torch.ones{2}")
    open(terminal.home + "/weights.safetensors", "w").close()
    os.mkdir(terminal.home + "/workdir")
    terminal.keys("torch.matm\t", "> torch.matmul")
    terminal.keys("\x03", ">").prompt()
    terminal.keys("redco.optim.adamw{ lea\t", "> redco.optim.adamw{ learning_rate =")
    terminal.keys("1, wei\t", "> redco.optim.adamw{ learning_rate = 1, weight_decay =")
    terminal.keys("\x03", ">").prompt()
    terminal.keys("require 'redco.opt\t", "> require 'redco.optim")
    terminal.keys("\x03", ">").prompt()
    terminal.keys("torch.load 'we\t", "> torch.load 'weights.safetensors")
    terminal.keys("\x03", ">").prompt()
    terminal.keys("torch.load 'wo\t", "> torch.load 'workdir/")
    terminal.keys("\x03", ">").prompt()
    terminal.keys("x:su\t", "> x:su")
    terminal.wait(lambda: terminal.screen.display[terminal.screen.cursor.y - 1].strip(), "list")
    terminal.keys("m\x01y = \x05()", "> y = x:sum()")
    terminal.send("\r")
    terminal.prompt().enter("y")
    see(terminal, """
redco-lua VERSION; :h for help, :q or Ctrl-D to end
> x = torch.ones{2}
> torch.matmul^C
> redco.optim.adamw{ learning_rate = 1, weight_decay = ^C
> require 'redco.optim^C
> torch.load 'weights.safetensors^C
> torch.load 'workdir/^C
> x:su
sub          sub_         subtract     subtract_    sum          sum_to_size
> y = x:sum()
> y
tensor(2.)
[float32 []]
>""")


def test_history():
    first = Terminal().prompt()
    second = Terminal(home=first.home).prompt()
    first.enter("a = 1", "for i = 1, 2 do", "a = a + i end")
    second.enter("b = 'back\\\\slash'")
    path = first.home + "/.local/state/redco/history"
    expect(open(path).read(),
           "a = 1\nfor i = 1, 2 do\\na = a + i end\nb = 'back\\\\\\\\slash'\n")
    expect(os.stat(path).st_mode & 0o777, 0o600)
    third = Terminal(home=first.home).prompt()
    third.keys("\x1b[A", "> b = 'back\\\\slash'")
    third.keys("\x1b[A", "a = a + i end")
    third.keys("\x1b[A", "> a = 1")
    third.keys("\x1b[B", "a = a + i end")
    third.send("\r")
    third.prompt()
    third.send("\x12b =")
    third.wait(lambda: third.text().endswith("> b = 'back\\\\slash'\nbck:b ="), "found line")
    with open(path, "w") as file:
        file.writelines(f"x = {i}\n" for i in range(25000))
    fourth = Terminal(home=first.home).prompt().keys("\x1b[A", "> x = 24999")
    lines = open(path).read().splitlines()
    expect((len(lines), lines[0], lines[-1]), (10000, "x = 15000", "x = 24999"))
    expect(os.listdir(first.home + "/.local/state/redco"), ["history"])
    fourth.child.close(force=True)
    other = Terminal(REDCO_HISTORY=first.home + "/elsewhere").prompt().enter("c = 3")
    expect(open(first.home + "/elsewhere").read(), "c = 3\n")
    other.child.close(force=True)


def test_paste():
    terminal = Terminal().prompt()
    terminal.keys("\x1b[200~local a = 2\rlocal b = 3\rprint(a * b)\r\x1b[201~", "print(a * b)")
    terminal.send("\r")
    terminal.prompt().enter("'é' .. 'ü'")
    see(terminal, """
redco-lua VERSION; :h for help, :q or Ctrl-D to end
> local a = 2
local b = 3
print(a * b)
6
> 'é' .. 'ü'
éü
>""")


FIT = """
deployer = redco.Deployer { seed = 1, verbose = VERBOSE }
trainer = redco.Trainer { deployer = deployer, params = { w = torch.zeros { 4, 1 } },
  optimizer = redco.optim.sgd { learning_rate = 0.01 },
  collate_fn = function(examples) return { x = torch.ones { #examples, 4 } } end,
  loss_fn = function(rng, state, params, batch) return batch.x:matmul(params.w):mean() end }
examples = {}
for i = 1, 6400 do examples[i] = i end
function fit(n)
  trainer:fit { train_examples = examples, global_batch_size = 64, per_device_batch_size = 64,
    n_epochs = n }
end
"""


def make_script(terminal_home, text):
    path = terminal_home + "/script.lua"
    with open(path, "w") as file:
        file.write("local redco = require 'redco'\nlocal torch = redco.torch\n" + text)
    return path


def interrupted(terminal, line):
    """Seconds from Ctrl-C to the next prompt."""
    terminal.send(line + "\r")
    end = time.time() + 1
    while time.time() < end:
        terminal.read()
    start = time.time()
    terminal.send("\x03")
    terminal.prompt()
    return time.time() - start


def test_interrupt():
    home = tempfile.mkdtemp()
    script = make_script(home, FIT.replace("VERBOSE", "false"))
    terminal = Terminal("-i", script, home=home).prompt()
    terminal.keys("half a line", "> half a line").keys("\x03", ">").prompt()
    terminal.enter("for i = 1, 2 do").keys("\x03", ">").prompt()
    terminal.enter("function loop() local n = 0 while true do n = n + 1 end end",
                   "a = torch.ones { 1000, 1000 }")
    for line in ("while true do end", "loop()", "while true do a:matmul(a) end", "fit(100000)"):
        seconds = interrupted(terminal, line)
        assert seconds < 1, f"{line}: {seconds} s"
    terminal.enter("'after'")
    shown, after = terminal.text().split("> fit(100000)\n")
    assert ": interrupted\n" in after and after.endswith("[TIME]\n> 'after'\nafter\n>"), after
    expect(shown.strip(), """
redco-lua VERSION; :h for help, :q or Ctrl-D to end
> half a line^C
> for i = 1, 2 do
>> ^C
> function loop() local n = 0 while true do n = n + 1 end end
> a = torch.ones { 1000, 1000 }
> while true do end
stdin:1: interrupted
[TIME]
> loop()
stdin:1: interrupted
        stdin:1: in function 'loop'
        stdin:1: in main chunk
[TIME]
> while true do a:matmul(a) end
stdin:1: interrupted
[TIME]""".strip())


def test_progress():
    home = tempfile.mkdtemp()
    script = make_script(home, FIT.replace("VERBOSE", "true"))
    terminal = Terminal("-i", script, home=home).prompt().enter("fit(2) os.execute 'sleep 0.1'")
    see(terminal, """
[CLOCK] Parameters: 4
redco-lua VERSION; :h for help, :q or Ctrl-D to end
> fit(2) os.execute 'sleep 0.1'
Epoch 0 / 2 100% loss -3.96 RATE examples/s in TIME (run 50%) 6400/6400
Epoch 1 / 2 100% loss -7.96 RATE examples/s in TIME (run 100%) 6400/6400
[CLOCK] Trained 200 steps (2 epochs) in TIME, RATE examples/s
[TIME]
>""")


def test_script_before():
    home = tempfile.mkdtemp()
    path = make_script(home, "made = 'before'\nlocal function f() error 'mine' end\nf()\n")
    terminal = Terminal("-i", path, home=home).prompt().enter("made")
    see(terminal, """
redco-lua: HOME/script.lua:4: mine
stack traceback:
        [C]: in function 'error'
        HOME/script.lua:4: in function 'f'
        HOME/script.lua:5: in main chunk
redco-lua VERSION; :h for help, :q or Ctrl-D to end
> made
before
>""")


def test_ends():
    """However it ends, the terminal is as before."""
    terminal = Terminal().prompt()
    terminal.send("\x04")
    expect(terminal.ended(), (0, None))

    def type_line(line):
        return lambda terminal: terminal.send(line + "\r")

    def send(number):
        def kill(terminal):
            terminal.keys("half", "> half")
            shell = terminal.child.pid
            program = int(open(f"/proc/{shell}/task/{shell}/children").read())
            os.kill(program, number)
        return kill

    for end, code in ((type_line(":q"), 0), (type_line("os.exit(3)"), 3),
                      (send(signal.SIGTERM), 128 + signal.SIGTERM),
                      (send(signal.SIGHUP), 128 + signal.SIGHUP)):
        terminal = Terminal("-c", f'"{PROGRAM}"; code=$?; stty -a; exit $code', command="/bin/sh")
        end(terminal.prompt())
        expect(terminal.ended(), (code, None))
        assert {"echo", "icanon", "isig", "echoctl"} <= set(terminal.text().split())


def test_suspend():
    terminal = Terminal("--norc", "--noprofile", "-i", command="/bin/bash", PS1="shell> ")
    terminal.keys(f"'{PROGRAM}'\r", ">")
    terminal.keys("half", "> half")
    terminal.keys("\x1a", "shell>")
    terminal.keys("echo works | tr a-z A-Z; fg\r", "> half")
    assert "WORKS" in terminal.text()
    terminal.keys(" = 5", "> half = 5")
    terminal.keys("\r", ">").keys("half\r", ">")
    terminal.wait(lambda: terminal.text().endswith("> half\n5\n>"), "value")


def test_pager():
    """Long texts of help, not values, go through $PAGER."""
    terminal = Terminal(PAGER="sed s/^/PAGED:/", rows=30).prompt()
    terminal.enter("?redco.nn", "?redco.tree.count", "for i = 1, 40 do print(i) end")
    assert "\nPAGED:" in terminal.raw.decode().replace("\r", ""), terminal.text()
    assert "PAGED:" not in terminal.text(), terminal.text()
    terminal = Terminal(PAGER="no-such-pager", rows=30).prompt().enter("?redco.nn")
    assert b"multihead_attention(" in terminal.raw


def test_narrow():
    terminal = Terminal(columns=40).prompt()
    terminal.enter("{ aaaaaaaaaaaaaaa = 1, bbbbbbbbbbbbbbbbbbbb = 2, c = 3 }")
    expect(terminal.text().split("to end\n")[1], """\
> { aaaaaaaaaaaaaaa = 1, bbbbbbbbbbbbbbb
bbbbb = 2, c = 3 }
{
  aaaaaaaaaaaaaaa = 1,
  bbbbbbbbbbbbbbbbbbbb = 2,
  c = 3
}
>""")


def test_several_processes():
    terminal = Terminal("--nproc", "4").prompt()
    terminal.enter("1 + 1", "r = tonumber(os.getenv 'RANK')", "r", "for i = 1, 2 do",
                   "  print(i * r)", "end", "'no ' .. 'tag'", "if r == 2 then error 'astray' end",
                   "error 'alike'", "os.execute 'sleep 0.2'")
    see(terminal, """
redco-lua VERSION; :h for help, :q or Ctrl-D to end
> 1 + 1
[all] 2
> r = tonumber(os.getenv 'RANK')
> r
[0] 0
[1] 1
[2] 2
[3] 3
> for i = 1, 2 do
>>   print(i * r)
>> end
[0] 0
[0] 0
[1] 1
[1] 2
[2] 2
[2] 4
[3] 3
[3] 6
> 'no ' .. 'tag'
[all] no tag
> if r == 2 then error 'astray' end
[2] stdin:1: astray
> error 'alike'
[all] stdin:1: alike
> os.execute 'sleep 0.2'
[all] 0
[TIME]
>""")
    terminal.keys("r + \t", "> r +")
    terminal.keys("\x03", ">").prompt()
    for chunk in "while true do end", "while r == 3 do end":
        terminal.send(chunk + "\r")
        time.sleep(0.5)
        start = time.time()
        terminal.send("\x03")
        terminal.prompt()
        assert time.time() - start < 2
    terminal.send("\x1a")
    terminal.prompt()
    terminal.enter("redco.Depl\t.name")
    terminal.send("\x04")
    expect(terminal.ended(), (0, None))


def test_several_processes_complete_and_remember():
    first = Terminal("--nproc", "2").prompt()
    first.enter("x = torch.ones { 2 }", "for i = 1, 2 do", "  last = i end")
    first.keys("torch.matm\t", "> torch.matmul")
    first.keys("\x03", ">").prompt()
    first.keys("redco.optim.adamw{ lea\t", "> redco.optim.adamw{ learning_rate =")
    first.keys("\x03", ">").prompt()
    first.keys("x:su\t", "> x:su")
    first.wait(lambda: "sum_to_size" in first.text(), "list")
    first.keys("m\t()", "> x:sum()")
    first.send("\r")
    first.prompt()
    first.send(":q\r")
    expect(first.ended(), (0, None))
    expect(first.text().split("\n")[-3:], ["[all] tensor(2.)", "[all] [float32 []]", "> :q"])
    expect(open(first.home + "/.local/state/redco/history").read(),
           "x = torch.ones { 2 }\nfor i = 1, 2 do\\n  last = i end\nx:sum()\n")
    second = Terminal("--nproc", "2", home=first.home).prompt()
    second.keys("\x1b[A", "> x:sum()").keys("\x1b[A", "  last = i end")
    second.send("\r")
    second.prompt().enter("last", "'of one'")
    expect(second.text().split("\n")[-5:], ["> last", "[all] 2", "> 'of one'", "[all] of one", ">"])
    second.send("\x12x:")
    second.wait(lambda: "bck:x:" in second.text(), "found line")
    second.child.close(force=True)
    alone = Terminal(home=first.home).prompt().keys("\x1b[A", "> 'of one'")
    alone.child.close(force=True)


def test_leaving():
    terminal = Terminal(columns=110).prompt().enter("exit", "quit", "nothing", "exit()")
    see(terminal, """
redco-lua VERSION; :h for help, :q or Ctrl-D to end
> exit
exit is nil; :q or Ctrl-D ends the prompt, os.exit() a script
> quit
quit is nil; :q or Ctrl-D ends the prompt, os.exit() a script
> nothing
nil
> exit()
stdin:1: attempt to call global 'exit' (a nil value); :q or Ctrl-D ends the prompt, os.exit() a script
>""")


def test_terminal_after_a_death():
    command = f'"{PROGRAM}" --nproc 2; code=$?; stty -a; exit $code'
    terminal = Terminal("-c", command, command="/bin/sh").prompt()
    terminal.send("if os.getenv 'RANK' == '0' then os.execute 'kill -9 $PPID' end\r")
    expect(terminal.ended(), (137, None))
    assert "failed first: was ended by signal 9" in terminal.text()
    assert {"echo", "icanon", "isig", "echoctl"} <= set(terminal.text().split())


def chat_folder(home):
    """A copy of a tiny model with a chat template, whose answers take long."""
    folder = home + "/model"
    shutil.copytree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../cases/llama"), folder)
    for name, settings in (
            ("config.json", {"max_position_embeddings": 100000}),
            ("tokenizer_config.json", {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})):
        with open(f"{folder}/{name}") as file:
            settings = {**json.load(file), **settings}
        with open(f"{folder}/{name}", "w") as file:
            json.dump(settings, file)
    return "model"


def test_chat():
    """Ctrl-C ends an answer, /exit and Ctrl-D the chat."""
    home = tempfile.mkdtemp()
    terminal = Terminal("chat", chat_folder(home), "--max-new-tokens=90000", home=home)

    def prompt():
        terminal.wait(lambda: terminal.row() == ">", "prompt")

    prompt()
    assert terminal.text().startswith("/reset forgets the conversation, /exit or Ctrl-D ends."), terminal.text()
    terminal.send("the sea\r")
    terminal.wait(lambda: len(terminal.raw.split(b"the sea\r\n")[-1]) > 200, "answer")
    start = time.time()
    terminal.send("\x03")
    prompt()
    assert time.time() - start < 5
    terminal.send("/reset\r")
    terminal.wait(lambda: terminal.text().endswith("> /reset\n>"), "prompt")
    terminal.send("/exit\r")
    expect(terminal.ended(), (0, None))
    terminal = Terminal("chat", "model", home=home)
    prompt()
    terminal.send("\x04")
    expect(terminal.ended(), (0, None))


def main():
    failed = 0
    tests = [(name, body) for name, body in globals().items() if name.startswith("test_")]
    for name, body in tests:
        if len(sys.argv) > 2 and sys.argv[2] not in name:
            continue
        try:
            body()
        except Exception:
            failed += 1
            print(f"not ok: {name}\n{traceback.format_exc()}\n{Terminal.newest.raw[-2000:]}")
    print(f"{len(tests) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
