"""Each check finds what it is there to find: run on small trees with one planted violation."""
import os
import tempfile
import textwrap
import unittest

import device_code
import hardening
import host_reads
import includes
import key_tests
import keys
import links
import messages
import models
import planted_bugs
import symbols
import table
import text
import unity


class Tree:
    """A folder with the given files; all are removed at the end."""

    kept = []

    def __init__(self, **contents):
        self.folder = tempfile.TemporaryDirectory()
        Tree.kept.append(self.folder)
        self.root = self.folder.name
        for path, content in contents.items():
            full = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(content)


class Table(unittest.TestCase):

    def test_closure_follows_listed_modules(self):
        self.assertEqual(table.allowed("models"), {
            "models", "layers", "nn", "comm", "kernels", "config", "base", "parallel/tensor", "parallel/context",
            "parallel/expert", "data"
        })

    def test_every_edge_points_down(self):
        for module in table.MAY_USE:
            for used in table.MAY_USE[module]:
                self.assertNotIn(module, table.allowed(used), f"{module} and {used} use each other")

    def test_cli_sees_everything(self):
        self.assertEqual(table.allowed("cli"), set(table.MAY_USE))


class DeviceCode(unittest.TestCase):

    def test_a_branch_on_the_type_of_a_lambdas_parameter_is_found(self):
        line = "if constexpr (std::is_same_v<decltype(x), double> ==\n    std::is_same_v<decltype(y), double>) f();\n"
        for name, count in (("a.cu", 1), ("a.cuh", 1), ("a.cpp", 0)):
            self.assertEqual(len(device_code.violations(Tree(**{f"pentatron/kernels/{name}": line}).root)), count, name)
        other = "if constexpr (std::is_same_v<T, double>) f(); // decltype(x)\n"
        self.assertEqual(device_code.violations(Tree(**{"pentatron/kernels/a.cu": other}).root), [])


class HostReads(unittest.TestCase):

    def found(self, line, path="pentatron/optim/a.cpp"):
        return host_reads.violations(Tree(**{path: line}).root)

    def test_each_way_to_read_a_device_is_found(self):
        for line in ("x.item<double>();", "x.sum().item<T>();", "x.cpu();", "p->cpu();", "x.to(at::kCPU, at::kLong);",
                     "at::nonzero(x);", "x.masked_select(y);", "if (at::equal(x, y)) {}", "x.to(y.device());",
                     "at::tensor(rows).to(layout.rows.device(), at::kInt);", "x.to(model_->device);", "x.to(device_);"):
            self.assertEqual(len(self.found(line + "\n")), 1, line)
        self.assertEqual(self.found("nn::to_device(x, y.device()).to(y.scalar_type());\n"), [])

    def test_other_folders_comments_and_the_place_itself_may(self):
        self.assertEqual(self.found("x.item<double>();\n", "pentatron/serve/a.cpp"), [])
        self.assertEqual(self.found("x.item<double>();\n", "pentatron/nn/host_copies.cpp"), [])
        self.assertEqual(self.found("y; // x.item<double>()\nat::Device d = at::kCPU;\nstd::equal(a, b, c);\n"), [])


class Unity(unittest.TestCase):
    OTHER = """
        namespace pentatron::nn {
        namespace fs = std::filesystem;
        namespace {
        constexpr int kSize = 1'000; // "{"
        struct Rows final : Base<int> { int size() const { return '}'; } };
        template <class T> int sum(const std::vector<T>& rows, int begin = 0) { return f({1, 2}); }
        using Clock = std::chrono::steady_clock;
        class Later;
        } // namespace
        Rows::Rows() : a_{1}, b_(2) {}
        int outside() { return 1; }
        } // namespace pentatron::nn
        """

    def found(self, line, path="pentatron/nn/ops/a.cpp", space="pentatron::nn", **more):
        own = f"namespace {space} {{\nnamespace {{\n{line}\n}}\n}}\n"
        return unity.violations(Tree(**{"pentatron/nn/b.cpp": self.OTHER, path: own, **more}).root)

    def test_a_name_that_two_sources_of_a_module_define_is_found(self):
        for line in ("const char* kSize = nullptr;", "enum class Rows : int { kOne };", "struct Rows {};", "class Rows : B {};",
                     "using Rows = int;", "int kSize[] = {1};", "static int Rows{2};", "int kSize() { return 1; }",
                     "template <class T>\nint sum(const std::vector<T>& of, int) {\n}", "using Clock = std::chrono::system_clock;"):
            self.assertEqual(len(self.found(line)), 1, line)
        self.assertEqual(self.found("\nstruct Rows {};"), [
            "pentatron/nn/ops/a.cpp:4: Rows is in an anonymous namespace of pentatron/nn/b.cpp too; a unity build may join them"
        ])

    def test_overloads_equal_aliases_and_what_is_elsewhere_may(self):
        for line in ("int sum(const std::vector<int>& rows, int begin) { return 1; }", "using Clock = std::chrono::steady_clock;",
                     "class Rows;", "int f(int kSize) { int Rows = 1; return Rows; }", "class Later {};", "int outside(int) { return 1; }",
                     "// struct Rows {};", "namespace fs = std::filesystem;", "struct A { struct Rows {}; };"):
            self.assertEqual(self.found(line), [], line)
        self.assertEqual(self.found("struct Rows {};", "pentatron/optim/a.cpp"), [])
        self.assertEqual(self.found("struct Rows {};", space="pentatron::nn::detail"), [])
        self.assertEqual(self.found("struct Rows {};", "pentatron/nn/graph_absent.cpp"), [])
        build = {"pentatron/CMakeLists.txt": "pentatron_module(nn TORCH NO_UNITY USES base)\n"}
        self.assertEqual(self.found("struct Rows {};", **build), [])

    def test_the_tests_of_a_module_are_joined_too(self):
        of = "namespace {\nstruct Case {};\n}\n"
        found = lambda one, other: len(unity.violations(Tree(**{one: of, other: of}).root))
        self.assertEqual(found("tests/nn/a_test.cpp", "tests/nn/b_test.cpp"), 1)
        self.assertEqual(found("tests/nn/a_test.cpp", "tests/optim/b_test.cpp"), 0)
        self.assertEqual(found("tests/nn/a_test.cpp", "tests/nn/processes/b_test.cpp"), 0)
        self.assertEqual(found("tests/nn/a_test.cpp", "pentatron/nn/b.cpp"), 0)


class Messages(unittest.TestCase):
    def test_what_throws_where_a_message_cannot_be_written_is_found(self):
        found = lambda line: messages.violations(Tree(**{"pentatron/cli/a.cpp": line}).root)
        self.assertEqual(len(found('fmt::print(stderr, "{}", x);\nstd::cerr << x;\nfmt::println(\n    stderr, "x");\n')), 3)
        self.assertEqual(found('fmt::print("{}", x); // print(stderr)\nstd::fprintf(stderr, "x");\nlog::print(x);\n'), [])


class Keys(unittest.TestCase):

    PAGE = "| `train.lr` | | | |\n| `model.rope.theta` | | | |\n"

    def found(self, path, content):
        return keys.violations(Tree(**{keys.PAGE: self.PAGE, path: content}).root)

    def test_unknown_key_in_a_message_is_found(self):
        found = self.found("pentatron/a.cpp", 'raise("try: "\n      "train.rate=3");\n')
        self.assertEqual(found, ["pentatron/a.cpp:1: train.rate is no key of the configuration"])

    def test_key_that_two_literals_make_is_read_as_one(self):
        self.assertEqual(self.found("pentatron/a.cpp", 'raise("try: train."\n "lr=3");\n'), [])
        self.assertEqual(len(self.found("pentatron/a.cpp", 'raise("try: train."\n "lrs=3");\n')), 1)

    def test_raw_literals_pages_and_scripts_are_read(self):
        self.assertEqual(len(self.found("pentatron/a.h", 'R"(set train.rate)"')), 1)
        self.assertEqual(len(self.found("README.md", "`model.rope.base=3`")), 1)
        self.assertEqual(len(self.found("scripts/a.sh", "pentatron train train.rate=3")), 1)

    def test_sections_files_members_and_comments_are_no_keys(self):
        self.assertEqual(self.found("pentatron/a.cpp", '// "train.rate"\nf(train.rate, "model.rope", "model.json");'), [])
        self.assertEqual(self.found("README.md", "`train.lr=3`, train.lr. See model.safetensors, a/train.py"), [])

    def composed(self, line, function="TrainConfig::validate"):
        rules = f"""
            struct TrainConfig {{
              static auto fields() {{ return field("lr", &C::lr, "a rate"); }}
            }};
            void {function}(config::Violations& violations,
                            std::string_view path) const {{
              const std::string prefix = std::string(path) + ".";
              const auto key = [&](std::string_view name) {{ return config::join(path, name); }};
              const auto needs = [&](bool asked, const char* name, const std::string& remedy) {{
                if (asked) violations.add(key(name), "is it?", config::join(path, remedy));
              }};
              {line}
            }}
            """
        return self.found("pentatron/a.cpp", textwrap.dedent(rules))

    def test_keys_that_rules_compose_are_found(self):
        for line in ('needs(true, "lr", "lr=3");', 'v.add(key("lr") + "=x", "x");', 'key(a ? "lr" : config::join(path, "lr"));',
                     'needs(is("rate"), "lr", rate);', '// key("rate")', 'key(fmt::format("{}_iters", rate));', 'x.key("rate");'):
            self.assertEqual(self.composed(line), [], line)
        for line in ('key("rate");', 'needs(true, "rate", "lr=3");', 'needs(true, "lr",\n      "rate=3");', 'config::join(path, "rate");',
                     'key(a ? "lr" : "rate");', 'v.add(prefix + "rate", "x");', 'needs(f(")", b), "rate", x);'):
            self.assertEqual(len(self.composed(line)), 1, line)
        self.assertEqual(self.composed('key("rate");'), ["pentatron/a.cpp:12: rate is no key of the section"])

    def test_a_key_of_another_section_is_found_where_the_section_is_known(self):
        self.assertEqual(len(self.composed('key("theta");')), 1)
        self.assertEqual(self.composed('key("theta");', "check_rate"), [])
        self.assertEqual(len(self.composed('key("rate");', "check_rate")), 1)


class KeyTests(unittest.TestCase):

    def found(self, why):
        listed = '{"a.b", {"none"}},\n' "kElsewhere = {\n" + f'    {{"train.lr",\n     {{{why}}}}},\n}};\n'
        return key_tests.violations(Tree(**{
            key_tests.LIST: listed, "tests/nn/some_test.cpp": "TEST_F(Rates, AreSmall) {\nTEST_P(\n    Slow, Run) {\n",
            "scripts/gpu_check.sh": ""
        }).root)

    def test_what_exists_is_not_found(self):
        for why in ('"of speed: Rates.AreSmall of nn_test"', '"Rates.Are... and "\n "Slow"', '"needs GPUs: scripts/gpu_check"',
                    '"needs a GPU: some_test.cpp"'):
            self.assertEqual(self.found(why), [], why)

    def test_missing_suites_tests_files_and_scripts_are_found(self):
        for why in ('"of speed: Rate.AreSmall"', '"Rates.Are"', '"Rates.AreLarge..."', '"other_test.cpp"', '"scripts/other"', '"a GPU"'):
            self.assertEqual(len(self.found(why)), 1, why)

    def test_a_list_that_is_not_read_is_told(self):
        self.assertEqual(len(key_tests.violations(Tree(**{key_tests.LIST: "kElsewhere = {};\n"}).root)), 1)


class Models(unittest.TestCase):
    HEADER = {"pentatron/models/gpt/gpt.h": "class Gpt final : public Model {\n"}

    def found(self, content):
        return models.violations(Tree(**{**self.HEADER, "pentatron/trainer/a.cpp": content}).root)

    def test_a_class_outside_is_found(self):
        self.assertEqual(len(self.found("models::Gpt model(config);\n")), 1)
        self.assertEqual(len(self.found("make_unique<Gpt>(c);\n")), 1)
        self.assertEqual(len(self.found('#include "pentatron/models/gpt/gpt.h"\n')), 1)

    def test_types_words_and_texts_are_none(self):
        self.assertEqual(self.found('x = 1; // a Gpt model\nf("Gpt (small)");\nGptDataset(d);\n'), [])

    def test_a_question_for_the_type_or_family_is_found(self):
        families = {
            "pentatron/models/model_enums.h": 'config::name(ModelType::kT5, "t5")\n',
            "pentatron/checkpoint/gguf/families/a.cpp": '.architecture = "gemma2",\n.model_type = "gemma2",\n'
        }
        tree = lambda path, line: models.violations(Tree(**{**self.HEADER, **families, path: line}).root)
        asked = "pentatron/checkpoint/gguf/a.cpp"
        self.assertEqual(len(tree("pentatron/trainer/a.cpp", "if (c.type == models::ModelType::kT5) {\n")), 1)
        self.assertEqual(len(tree("pentatron/trainer/a.cpp", "if (c.type == data::DatasetType::kT5) {\n")), 1)
        self.assertEqual(tree("pentatron/trainer/a.cpp", "if (c.type == data::DatasetType::kSft) {\n"), [])
        self.assertEqual(len(tree(asked, 'if (family == "gemma2") {\n')), 1)
        self.assertEqual(len(tree("pentatron/cli/a.cpp", 'if (type == "t5") {\n')), 1)
        self.assertEqual(tree(asked, '"a gemma2 file"; // "gemma2"\n'), [])
        self.assertEqual(tree("pentatron/checkpoint/hf/families/b.cpp", 'if (family == "gemma2") {\n'), [])

    def test_a_list_of_families_that_the_page_does_not_name_is_found(self):
        families = "pentatron/checkpoint/hf/families/"
        tree = {
            **self.HEADER, families + "a.cpp": "Family a_family() {\n", families + "b.cpp": "Family b_family() {\n",
            families + "all.h": "Family a_family();\nFamily b_family();\n", "pentatron/checkpoint/c.cpp": "a_family();\n"
        }
        page = lambda text: models.violations(Tree(**tree, **{models.PAGE: text}).root)
        self.assertEqual(page("a line in `families/all.h`"), [])
        self.assertEqual(page("a line"), [f"{models.PAGE}: a new family needs a line in {families}all.h, which the page does not name"])

    def test_a_tree_without_models_is_told(self):
        self.assertEqual(len(models.violations(Tree(**{"pentatron/trainer/a.cpp": "\n"}).root)), 1)


class Includes(unittest.TestCase):

    def found(self, path, content):
        return includes.violations(Tree(**{path: content}).root)

    def test_upward_include_is_found(self):
        self.assertIn("base may not use nn", self.found("pentatron/base/a.cpp", '#include "pentatron/nn/param.h"\n')[0])

    def test_downward_include_is_allowed(self):
        self.assertEqual(self.found("pentatron/models/gpt/a.cpp", '#include "pentatron/base/error.h"\n'), [])

    def test_torch_header_in_kernels_is_found(self):
        self.assertIn("no torch header", self.found("pentatron/kernels/norm/a.cpp", "#include <ATen/ATen.h>\n")[0])

    def test_torch_fmt_is_allowed_in_base(self):
        self.assertEqual(self.found("pentatron/base/a.cpp", "#include <fmt/format.h>\n"), [])

    def test_relative_include_is_found(self):
        self.assertEqual(len(self.found("pentatron/base/a.cpp", '#include "error.h"\n')), 1)

    def test_unknown_folder_is_found(self):
        self.assertEqual(len(self.found("pentatron/utils/a.cpp", "\n")), 1)

    def test_schedule_uses_base_only(self):
        path = "pentatron/parallel/pipeline/schedule/gpipe.cpp"
        self.assertEqual(self.found(path, '#include "pentatron/parallel/pipeline/schedule/schedule.h"\n'), [])
        self.assertEqual(len(self.found(path, '#include "pentatron/parallel/pipeline/runtime.h"\n')), 1)
        self.assertEqual(len(self.found(path, '#include "pentatron/comm/group.h"\n')), 1)

    def test_generate_sees_only_the_tokenizer_of_data(self):
        path = "pentatron/generate/a.cpp"
        self.assertEqual(self.found(path, '#include "pentatron/data/tokenizer.h"\n'), [])
        self.assertEqual(len(self.found(path, '#include "pentatron/data/corpus.h"\n')), 1)

    def test_upward_target_is_found(self):
        tree = Tree(**{"pentatron/CMakeLists.txt": "pentatron_module(comm TORCH USES base nn LIBRARIES x)\n"})
        self.assertEqual(len(includes.violations(tree.root)), 1)


class Symbols(unittest.TestCase):

    def found(self, content):
        return symbols.violations(Tree(**{"pentatron/base/a.cpp": content}).root)

    def test_pickle_is_found(self):
        for line in ("torch::load(t, path);", "torch::jit::load(path);", "#include <torch/script.h>", "dlopen(p, 1);",
                     "std::system(command);", 'popen("ls", "r");'):
            self.assertEqual(len(self.found(line)) >= 1, True, line)

    def test_ordinary_code_passes(self):
        self.assertEqual(self.found("std::system_error e; file_system(x); a.system(); // torch::load is not used\n"), [])

    def test_only_the_supervisor_and_main_start_programs(self):
        line = "::execve(path, arguments, environment);"
        self.assertEqual(len(self.found(line)), 1)
        for allowed in ("pentatron/comm/supervisor.cpp", "pentatron/main.cpp"):
            self.assertEqual(symbols.violations(Tree(**{allowed: line}).root), [])
        self.assertEqual(len(symbols.violations(Tree(**{"pentatron/comm/supervisor.cpp": "execvp(a, b);"}).root)), 1)

    def test_imports_are_found(self):
        listing = "                 U dlopen@GLIBC_2.34\n                 U torch::jit::load(std::string const&)\n"
        self.assertEqual(len(symbols.violations_in_listing(listing, "p")), 2)
        self.assertEqual(symbols.violations_in_listing("                 U at::_ops::mm::call(at::Tensor const&)\n", "p"), [])


class Text(unittest.TestCase):

    def test_missing_and_long_readmes_are_found(self):
        tree = Tree(**{"pentatron/base/a.cpp": "", "pentatron/nn/a.cpp": "", "pentatron/nn/README.md": "x\n" * 31})
        self.assertEqual(len(text.readmes(tree.root)), 2)

    def test_long_source_is_found_and_long_header_is_advised(self):
        found, advice = text.sizes(Tree(**{"pentatron/base/a.cpp": "\n" * 600, "pentatron/base/a.h": "\n" * 301}).root)
        self.assertEqual((len(found), len(advice)), (1, 1))

    def test_machine_paths_are_found(self):
        for word in ("/wo" "rk/main", "../sha" "red/x", "/ro" "ot/.cache"):
            self.assertEqual(len(text.words(Tree(**{"docs/a.md": f"see {word}\n"}).root)), 1, word)
        self.assertEqual(text.words(Tree(**{"docs/a.md": "a framework/thing, build/work/x\n"}).root), [])


class Links(unittest.TestCase):

    def found(self, readme, page="# A title: *one*, `two`\n"):
        return links.violations(Tree(**{"README.md": readme, "docs/a.md": page}).root)

    def test_page_without_a_link_is_found(self):
        self.assertEqual(self.found("see docs/a.md"), ["README.md: no link to docs/a.md"])
        self.assertEqual(len(self.found("```sh\n[a](docs/a.md)\n```\n")), 1)
        self.assertEqual(self.found("[a](docs/a.md), [b](https://example.com/b)"), [])

    def test_links_that_lead_nowhere_are_found(self):
        self.assertEqual(self.found("[a](docs/a.md#a-title-one-two)"), [])
        self.assertEqual(len(self.found("[a](docs/a.md#two)")), 1)
        self.assertEqual(len(self.found("[a](docs/a.md)", "[b](docs/a.md) [c](../README.md) [d](#d)")), 2)


class PlantedBugs(unittest.TestCase):

    def tree(self, listed, sites):
        bugs = "".join(f"{name} | what\n" for name in listed)
        source = "".join(f'planted("{name}");\n' for name in sites)
        return Tree(**{planted_bugs.LIST: bugs, "pentatron/nn/a.cpp": source, "p/a": source, "p/b": "\0"})

    def test_missing_repeated_and_unlisted_bugs_are_found(self):
        names = [f"bug_{i}_end" for i in range(planted_bugs.LEAST)]
        self.assertEqual(planted_bugs.violations(self.tree(names, names).root), [])
        self.assertEqual(len(planted_bugs.violations(self.tree(names, names[1:]).root)), 1)
        self.assertEqual(len(planted_bugs.violations(self.tree(names, names + names[:1]).root)), 1)
        self.assertEqual(len(planted_bugs.violations(self.tree(names, names + ["another"]).root)), 1)
        self.assertEqual(len(planted_bugs.violations(self.tree(names[1:], names[1:]).root)), 1)
        self.assertEqual(len(planted_bugs.violations(self.tree(names + names[:1], names).root)), 1)

    def test_a_program_with_a_bug_is_found(self):
        root = self.tree(["a_bug"], ["a_bug"]).root
        self.assertEqual(len(planted_bugs.violations_in_program(root, os.path.join(root, "p/a"))), 1)
        self.assertEqual(planted_bugs.violations_in_program(root, os.path.join(root, "p/b")), [])


class Hardening(unittest.TestCase):

    def test_a_bare_program_is_found(self):
        """Compiled here without any flag of ours."""
        tree = Tree(**{"p/a.c": "int main(void) { return 0; }\n"})
        source, program = os.path.join(tree.root, "p/a.c"), os.path.join(tree.root, "p/a")
        if os.system(f"cc -no-pie -Wl,-z,norelro,-z,lazy,-z,execstack {source} -o {program} 2>/dev/null") != 0:
            self.skipTest("no C compiler")
        self.assertGreaterEqual(len(hardening.violations(program)), 5)


if __name__ == "__main__":
    unittest.main()
