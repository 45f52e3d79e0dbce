"""relink.py - for pack.sh: what it takes to compile one file again on the visited machine.

    relink.py BUILD TOP PACKAGE PRODUCT...

Copies the objects and archives that PRODUCT (programs and plug-ins of a Ninja build) are linked of
to PACKAGE/relink, with two tables of commands for rebuild.sh, which runs them in that folder:

    links      PRODUCT <tab> COMMAND
    compiles   SOURCE <tab> OBJECT <tab> ARCHIVE or - <tab> COMMAND

Paths of this machine are replaced: sources lie in ../src, libraries in ../lib, and @CUDA@ stands
for flags that rebuild.sh knows. Only what a GPU is used with is there: products that link CUDA.
"""
import json
import os
import shlex
import shutil
import subprocess
import sys

CUDA = ("libcuda.so", "libcudart.so", "libcublasLt.so", "libnccl.so")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def link_command(build, product):
    """The command that makes a product, as words; None for one without CUDA."""
    for line in reversed(run("ninja", "-C", build, "-t", "commands", product).splitlines()):
        line = line.removeprefix(": && ").removesuffix(" && :")
        words = shlex.split(line) if f" -o {product} " in line + " " else []
        if words:
            return words if any(os.path.basename(word).startswith(CUDA) for word in words) else None
    raise SystemExit(f"relink.py: no command makes {product}")


def soname(path):
    for line in run("objdump", "-p", path).splitlines():
        if line.split()[:1] == ["SONAME"]:
            return line.split()[1]
    return os.path.basename(path)


class Relink:
    def __init__(self, build, top, package):
        self.build, self.top, self.package = build, top, package
        self.out = os.path.join(package, "relink")
        self.inputs = {}  # objects and archives of the build that a product is linked of

    def word(self, word):
        """A word of a link command, as the visited machine needs it."""
        name = os.path.basename(word)
        if word.startswith(("-Wl,-rpath", "-L")) or word in ("-lcudadevrt", "-lcudart_static"):
            return []
        if word.endswith((".o", ".a")) and not os.path.isabs(word):
            self.inputs[word] = True
            return [word]
        if name.startswith("libdp.so"):
            return ["../libdp.so.0.3"]
        if name.startswith(CUDA) and ".so" in word:
            return ["-l:" + soname(word)]
        if word == "-lcudart":
            return []
        if os.path.isabs(word) and word.endswith(".a"):
            return ["-l" + name.removeprefix("lib").removesuffix(".a")]
        if os.path.isabs(word) and ".so" in name:
            file = "../lib/" + soname(word)
            return [file] if os.path.exists(os.path.join(self.out, file)) else []
        if os.path.isabs(word):
            return [name]  # the compiler
        return [word.replace(self.top + "/", "../src/")]

    def link(self, product):
        words = link_command(self.build, product)
        if words is None:
            return None
        origin = "$ORIGIN/..:$ORIGIN/../lib" if "/" in product else "$ORIGIN:$ORIGIN/lib"
        found = [new for word in words for new in self.word(word)]
        found[found.index("-o") + 1] = "../" + product
        return found + ["@CUDA_LINK@", "-Wl,-rpath," + origin]

    def objects(self, archive):
        """The objects that an archive of the build is made of."""
        lines = run("ninja", "-C", self.build, "-t", "query", archive).splitlines()
        return [line.strip() for line in lines if line.strip().endswith(".o")]

    def compiles(self):
        with open(os.path.join(self.build, "compile_commands.json"), encoding="utf-8") as file:
            entries = json.load(file)
        commands = {}
        for entry in entries:
            words = shlex.split(entry["command"])
            commands[words[words.index("-o") + 1]] = (entry["file"], words)
        for product in self.inputs:
            is_archive = product.endswith(".a")
            members = self.objects(product) if is_archive else [product]
            names = [os.path.basename(member) for member in members]
            for member, name in zip(members, names):
                if member not in commands or names.count(name) != 1:
                    continue
                source, words = commands[member]
                source = os.path.relpath(source, self.top)
                if os.path.exists(os.path.join(self.package, "src", source)):
                    yield source, name, product if is_archive else member, self.compile(words)

    def compile(self, words):
        """A compiler's command as the visited machine needs it; headers of CUDA's come from there."""
        found = [os.path.basename(words[0])]
        for before, word in zip(words, words[1:]):
            if word.startswith("-isystem") or before == "-isystem":
                continue
            word = word.replace(self.build + "/generated", "generated")
            found.append(word.replace(self.top, "../src"))
        return found + ["@CUDA_COMPILE@"]

    def copy(self):
        for path in self.inputs:
            to = os.path.join(self.out, path)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copyfile(os.path.join(self.build, path), to)
            run("strip", "--strip-debug", to)
        shutil.copytree(os.path.join(self.build, "generated"), os.path.join(self.out, "generated"))


def quoted(words):
    return " ".join(word if word.startswith("@") else shlex.quote(word) for word in words)


def main():
    build, top, package = (os.path.abspath(path) for path in sys.argv[1:4])
    relink = Relink(build, top, package)
    os.makedirs(relink.out)
    with open(os.path.join(relink.out, "links"), "w", encoding="utf-8") as file:
        for product in sys.argv[4:]:
            words = relink.link(product)
            if words is not None:
                file.write(f"{product}\t{quoted(words)}\n")
    relink.copy()
    with open(os.path.join(relink.out, "compiles"), "w", encoding="utf-8") as file:
        for source, name, place, words in relink.compiles():
            words[words.index("-o") + 1] = place if place.endswith(".o") else "objects/" + name
            object_path = place if place.endswith(".o") else "objects/" + name
            archive = "-" if place.endswith(".o") else place
            file.write(f"{source}\t{object_path}\t{archive}\t{quoted(words)}\n")


main()
