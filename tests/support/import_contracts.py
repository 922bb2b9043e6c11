"""A contract for import-linter: some packages import nothing of shardlint but its public modules."""

from importlinter import Contract, ContractCheck, fields, output

from shardlint import PUBLIC_MODULES


class PublicModulesContract(Contract):
    """
    An allow-list: what is not among `shardlint.PUBLIC_MODULES` is refused, however new it is.

    `source_packages` are the packages that are held to it. Of a public package named with `.*` all modules are public.
    """

    type_name = "public_modules"

    source_packages = fields.ListField(subfield=fields.StringField())

    def check(self, graph, verbose):
        """Compare every import of the packages with the list."""
        refused = [
            (importer, imported)
            for importer in sorted(graph.modules)
            if any(_within(importer, package) for package in self.source_packages)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if _within(imported, "shardlint") and not is_public(imported)
        ]
        return ContractCheck(kept=not refused, metadata={"refused": refused})

    def render_broken_contract(self, check):
        """Name each import that is refused."""
        for importer, imported in check.metadata["refused"]:
            output.print_error(f"{importer} imports {imported}, which is not in shardlint.PUBLIC_MODULES")


def is_public(module):
    """Whether a module of shardlint stands in the tuple, itself or by its package."""
    packages = [public.removesuffix(".*") for public in PUBLIC_MODULES if public.endswith(".*")]
    return module in PUBLIC_MODULES or any(_within(module, package) for package in packages)


def _within(module, package):
    return module == package or module.startswith(package + ".")
